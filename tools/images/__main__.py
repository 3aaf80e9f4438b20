"""Builds the images whose inputs changed and writes `build/images.json`.

The file maps a target to the name of its image and the path of its export. BASE_IMAGE chooses the
base image. TORCH_SLIM=1 removes the parts of torch's CUDA build that machines without GPUs never
load.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.cache import cache_folder
from tools.images import layout
from tools.images.base import base_image
from tools.images.engine import Build, Engine, choose_engine
from tools.images.inputs import TARGETS, content_hash
from tools.indexes import ca_bundle, index_settings_of_host
from tools.locks import locked
from tools.progress import ToolError, report, run_tool, step

ROOT = Path(__file__).resolve().parent.parent.parent
POINTERS = ROOT / "build" / "images.json"


def main() -> int:
    """Build the targets of the command line, by default all."""
    targets = sys.argv[1:] or list(TARGETS)
    unknown = set(targets) - set(TARGETS)
    if unknown:
        raise ToolError(
            f"unknown image {', '.join(sorted(unknown))}: the Dockerfile has {', '.join(TARGETS)}"
        )
    cache = cache_folder()
    with locked(cache / "locks" / "images", "the images", report):
        build_images(targets, cache)
    return 0


def build_images(targets: Sequence[str], cache: Path) -> None:
    """Build and export those of `targets` whose inputs changed, and update the file of pointers."""
    folder = cache / "images"
    folder.mkdir(parents=True, exist_ok=True)
    arguments = {name: os.environ[name] for name in ("BASE_IMAGE",) if name in os.environ}
    arguments["TORCH_SLIM"] = os.environ.get("TORCH_SLIM", "0")
    tags = {target: content_hash(ROOT, target, arguments) for target in targets}
    if any(layout.find(folder, target, tag) is None for target, tag in tags.items()):
        engine = choose_engine(cache)
        arguments.setdefault("BASE_IMAGE", base_image(engine, cache))
        build_outdated(engine, tags, arguments, folder)
    images = {target: _pointer(folder, target, tag) for target, tag in tags.items()}
    layout.write_pointers(POINTERS, images)
    for target, image in images.items():
        report(f"    {target}: {image['name']} at {image['path']}")


def build_outdated(
    engine: Engine,
    tags: Mapping[str, str],
    arguments: Mapping[str, str],
    folder: Path,
    source: Path = ROOT,
) -> None:
    """Build and export the images that are missing in `folder`, from the files of `source`. Then
    delete old ones there and in the engine.
    """
    dockerfile = source / "Dockerfile"
    with tempfile.TemporaryDirectory() as temporary:
        secrets = _secrets(Path(temporary))
        for target, tag in tags.items():
            if layout.find(folder, target, tag) is None:
                name = name_of(target, tag)
                with step(f"image {name}"):
                    engine.build(Build(target, name, arguments, secrets), source, dockerfile)
                with step("export"):
                    layout.export(engine, name, folder / f"{target}-{tag}{engine.suffix}")
        # The pruning of layers keeps a stage that has a name. Its tools need no new installation.
        engine.build(
            Build("code", "localhost/regroup-code:latest", arguments, secrets), source, dockerfile
        )
    removed = [(target, path) for target in tags for path in layout.prune(folder, target)]
    engine.prune([name_of(target, layout.tag_of(path, target)) for target, path in removed])


def name_of(target: str, tag: str) -> str:
    """Return the name of an image: its target and the hash of its inputs."""
    return f"localhost/regroup-{target}:{tag}"


def _pointer(folder: Path, target: str, tag: str) -> dict[str, str]:
    return {"name": name_of(target, tag), "path": str(layout.find(folder, target, tag))}


def _secrets(folder: Path) -> dict[str, Path]:
    """Write the build secrets: this machine's CA bundle, package indexes and proxies. No layer
    contains them.
    """
    environment = folder / "environment"
    environment.write_text(
        "".join(f"export {name}='{value}'\n" for name, value in index_settings_of_host().items())
    )
    bundle = ca_bundle(os.environ)
    return {"environment": environment, **({"ca": Path(bundle)} if bundle else {})}


if __name__ == "__main__":
    run_tool(main)
