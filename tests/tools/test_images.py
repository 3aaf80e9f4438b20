"""The built images: their user, their entry point, and what they must not contain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@dataclass(frozen=True)
class BuiltImage:
    """An exported image: its configuration, and the paths of its layers' files, the lowest layer
    first.
    """

    config: dict[str, Any]
    layers: list[list[str]]

    def files(self) -> Iterator[str]:
        """Yield the paths of all layers."""
        for layer in self.layers:
            yield from layer


def read(path: Path) -> BuiltImage:
    """Read an OCI layout."""

    def blob(descriptor: dict[str, str]) -> Path:
        return path / "blobs" / descriptor["digest"].replace(":", "/")

    (entry,) = json.loads((path / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(entry).read_text())
    layers = [names(blob(layer)) for layer in manifest["layers"]]
    return BuiltImage(json.loads(blob(manifest["config"]).read_text())["config"], layers)


def names(layer: Path) -> list[str]:
    """Return the paths of the files of an uncompressed layer."""
    with tarfile.open(layer, "r:") as tar:
        return [member.name for member in tar]


@pytest.fixture(scope="module")
def images() -> dict[str, BuiltImage]:
    """Build what is outdated, as `make test` does, and read the exports."""
    environment = {"TORCH_SLIM": "1", **os.environ}
    built = subprocess.run(
        [sys.executable, "-m", "tools.images"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pointers = json.loads((ROOT / "build" / "images.json").read_text())
    if any(Path(pointer["path"]).is_file() for pointer in pointers.values()):
        pytest.skip("docker exported archives; their layers are the same")
    return {target: read(Path(pointer["path"])) for target, pointer in pointers.items()}


@pytest.mark.parametrize("target", ["operator", "trainer"])
def test_images_run_as_an_ordinary_user(images: dict[str, BuiltImage], target: str) -> None:
    assert images[target].config["User"] == "1000:1000"


@pytest.mark.parametrize(
    ("target", "module"), [("operator", "regroup_operator"), ("trainer", "regroup_trainer.agent")]
)
def test_the_product_is_process_one(
    images: dict[str, BuiltImage], target: str, module: str
) -> None:
    config = images[target].config
    assert (config["Entrypoint"], config["Cmd"]) == (["python", "-m"], [module])


@pytest.mark.parametrize("target", ["operator", "trainer"])
def test_no_tool_of_the_build_is_left(images: dict[str, BuiltImage], target: str) -> None:
    tools = {"uv", "hatchling", "gcc", "g++", "cc"}
    folders = ("opt/regroup/bin", "opt/tools/bin", "usr/bin", "usr/local/bin")
    assert not [
        name
        for name in images[target].files()
        if Path(name).name in tools and str(Path(name).parent) in folders
    ]


@pytest.mark.parametrize("target", ["operator", "trainer"])
def test_nothing_of_this_machine_is_left(images: dict[str, BuiltImage], target: str) -> None:
    assert not [name for name in images[target].files() if name.startswith("run/secrets/")]
    assert not [
        name
        for name in images[target].files()
        if name.startswith(("run/uv-cache/", "var/cache/uv/"))
    ]


@pytest.mark.parametrize("target", ["operator", "trainer"])
def test_our_modules_are_there_with_their_byte_code(
    images: dict[str, BuiltImage], target: str
) -> None:
    found = {name.partition("site-packages/")[2] for name in images[target].files()}
    for path in (ROOT / "trainer").rglob("*.py"):
        module = path.relative_to(ROOT / "trainer")
        assert module.as_posix() in found
        assert any(name.startswith(f"{module.parent}/__pycache__/{module.stem}.") for name in found)


def test_the_operator_has_no_torch(images: dict[str, BuiltImage]) -> None:
    assert not [name for name in images["operator"].files() if "site-packages/torch/" in name]


def test_our_code_is_one_small_layer_above_torch(images: dict[str, BuiltImage]) -> None:
    (torch,) = [
        number
        for number, layer in enumerate(images["trainer"].layers)
        if any("/torch/" in n for n in layer)
    ]
    ours = [
        number
        for number, layer in enumerate(images["trainer"].layers)
        if any("/regroup_trainer/" in n for n in layer)
    ]
    assert ours == [torch + 1]
