"""The agent in an image that has torch and knows nothing of us."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from regroup_trainer.agent import start
from regroup_trainer.coordinator.coordinator_status import make_status
from tests.support.agent_site import WARM_SECONDS, ended, make_site
from tools.pythons import ROOT
from tools.venv import run_uv, uv_binary

VERSION = ".".join(map(str, sys.version_info[:2]))
SHARED = {"typing_extensions"}
"""Packages that both we and torch need: an image with torch has them."""

PLAIN = """
import importlib.util, json, sys
from pathlib import Path

import pydantic
import torch.distributed as dist

dist.init_process_group("gloo")
saved = Path(sys.argv[1], "saved.json")
if not saved.exists():
    names = ("aiohttp", "prometheus_client")
    where = {name: importlib.util.find_spec(name) is not None for name in names}
    found = {**where, "pydantic": pydantic.__file__, "executable": sys.executable}
    saved.write_text(json.dumps(found))
    raise ValueError("a bug that comes once")
dist.destroy_process_group()
"""

SESSION = """
import sys

import torch
from regroup_trainer import Session

session = Session(seed=3, save_every_steps=2)
model = session.prepare(torch.nn.Linear(4, 2), strategy="ddp")
session.attach(torch.optim.SGD(model.parameters(), lr=0.1))
points = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randint(2, (16,)))
for inputs, labels in session.batches(points, 4, 4):
    session.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
    session.step()
"""


@dataclass(frozen=True)
class Image:
    """A Python with torch, and the folder that an init container puts beside it."""

    python: Path
    folder: Path

    @property
    def start(self) -> Path:
        return self.folder / "code" / "regroup_trainer" / "agent" / "start.py"

    @property
    def agent(self) -> list[str | Path]:
        """The agent's command line, as the operator writes it."""
        return [self.python, self.start, "regroup_trainer.agent"]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, self.start, *arguments], capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the operator's image has in /opt/agent, for this version of Python."""
    made = tmp_path_factory.mktemp("opt") / "agent"
    for part in ("ranks", "agent"):
        target = ("--python", sys.executable, "--target", str(made / part / VERSION))
        run_uv(
            uv_binary(),
            "pip",
            "install",
            "--quiet",
            *target,
            "--requirement",
            f"requirements/injected-{part}.txt",
        )
    code = made / "code" / "regroup_trainer"
    shutil.copytree(
        ROOT / "trainer" / "regroup_trainer", code, ignore=shutil.ignore_patterns("__pycache__")
    )
    return made


@pytest.fixture(scope="module")
def image(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The packages of our environment, without our own and those that the folder brings."""
    home = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    brought = {
        path.name for part in ("ranks", "agent") for path in (folder / part / VERSION).iterdir()
    }
    hidden = {name for name in brought if not name.startswith(tuple(SHARED))}
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.name not in hidden and not re.match(r"_?_?(editable|regroup)", path.name):
            (packages / path.name).symlink_to(path)
    return Image(home / "bin" / "python", folder)


@pytest.mark.slow
async def test_a_plain_script_is_restarted_from_what_it_saved_and_sees_only_what_ranks_need(
    image: Image, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    async with make_site(tmp_path, "plain", script=(str(script), str(tmp_path))) as site:
        agent = site.start_agent(
            command=image.agent, start=str(image.start), entry="regroup_trainer.rank.rank_process"
        )
        await site.until("completed")
        code, text = await ended(agent, WARM_SECONDS)
        status = make_status(site.core.state, 1)
    assert code == 0, text
    assert status.ledger.restarts == {"application": 1}
    assert "a bug that comes once" in status.recoveries[0].message
    assert json.loads((tmp_path / "saved.json").read_text()) == {
        "aiohttp": False,
        "prometheus_client": False,
        "pydantic": str(image.folder / "ranks" / VERSION / "pydantic" / "__init__.py"),
        "executable": str(image.python),
    }


@pytest.mark.long
@pytest.mark.slow
async def test_a_script_with_a_session_commits_its_steps(image: Image, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SESSION)
    async with make_site(tmp_path, "session", script=(str(script),)) as site:
        agent = site.start_agent(
            command=image.agent, start=str(image.start), entry="regroup_trainer.rank.rank_process"
        )
        await site.until("completed")
        code, text = await ended(agent, WARM_SECONDS)
        status = make_status(site.core.state, 1)
    assert code == 0, text
    assert status.progress is not None
    assert status.progress.step == 4
    assert status.checkpoint is not None


def test_an_image_without_torch_gets_an_error_that_names_it(image: Image) -> None:
    bare = Image(Path(sys.base_prefix, "bin", f"python{VERSION}"), image.folder)
    outcome = bare.run("regroup_trainer.agent")
    assert outcome.returncode == 2
    assert "has no torch and no numpy: install it in the image" in outcome.stderr


def test_an_unsupported_python_gets_an_error_that_names_the_supported_ones() -> None:
    problem = start.find_problem("3.9", ["3.11", "3.12"])
    assert problem == (
        "the Python of this image is 3.9; launcher regroup runs under 3.11, 3.12: use another "
        "image, or "
        "spec.launcher: torchrun"
    )


@pytest.mark.parametrize(
    ("versions", "first"),
    [
        ({"pydantic": "2.14.3"}, "image"),
        ({"pydantic": "2.10", "xxhash": "3.5.0", "typing_extensions": "4.0"}, "image"),
        ({"pydantic": "1.10.2"}, "ours"),
        ({"pydantic": "2.14.3", "xxhash": "2.0.2"}, "ours"),
        ({}, "ours"),
    ],
)
def test_ranks_use_the_images_packages_unless_they_are_too_old(
    versions: dict[str, str], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    code, *rest = start.search_path(["/image"], "regroup_trainer.agent.template", "3.12")
    ours = str(start.FOLDER / "ranks" / "3.12")
    assert code == str(start.FOLDER / "code")
    assert rest == (["/image", ours] if first == "image" else [ours, "/image"])


def test_the_agent_sees_its_own_packages_first() -> None:
    code, agent, ranks, image = start.search_path(["/image"], "regroup_trainer.agent", "3.12")
    assert (Path(code).name, Path(agent).parent.name, Path(ranks).parent.name, image) == (
        "code",
        "agent",
        "ranks",
        "/image",
    )


def test_the_oldest_versions_are_those_that_are_pinned_from() -> None:
    lines = (ROOT / "requirements" / "injected-ranks.in").read_text().splitlines()
    needed = [line.partition(";")[0] for line in lines if not line.startswith("#")]
    pinned = dict(line.split(">=") for line in needed)
    assert {name: ".".join(map(str, oldest)) for name, oldest in start.OLDEST.items()} == pinned
