"""The wheel as users install it: into an empty environment, without and with extras."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.page_terminal import on_a_page
from tools.pythons import ROOT
from tools.venv import run_uv, uv_binary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SCRIPT = """
apiVersion: regroup.dev/v1alpha1
kind: TrainingJob
metadata: {name: mine}
spec:
  template: {spec: {containers: [{name: trainer, command: [python, train.py]}]}}
"""
EXAMPLE = ROOT / "examples/1-first-ddp-script/regroup.yaml"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ("build", "--quiet", "--offline", "--wheel", "--no-build-isolation")
    run_uv(uv_binary(), *build, "--python", sys.executable, "--out-dir", str(folder), str(ROOT))
    (built,) = folder.glob("*.whl")
    return built


def make_environment(folder: Path, wheel: Path, extra: str = "") -> Path:
    """Install the wheel into a new environment; returns the folder of its programs."""
    uv, python = uv_binary(), folder / "bin/python"
    run_uv(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
    pins = ("--constraint", "requirements/dev.txt")
    run_uv(uv, "pip", "install", "--quiet", "--python", str(python), *pins, f"{wheel}{extra}")
    return folder / "bin"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The programs of an environment without extras."""
    return make_environment(tmp_path_factory.mktemp("bare") / "venv", wheel)


def run(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=400, env={}
    )


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["run", "--help"], ["validate", EXAMPLE], ["plan", "--help"]],
    ids=lambda arguments: " ".join(map(str, arguments[:2])),
)
def test_without_extras_checks_and_plans_work(
    bare: Path, tmp_path: Path, arguments: Sequence[str | Path]
) -> None:
    done = run([bare / "regroup", *arguments], tmp_path)
    assert done.returncode == 0, done.stderr


PROGRAMS: dict[str, tuple[list[str], str, int]] = {
    "regroup run": (["regroup", "run", str(EXAMPLE)], "trainer", 1),
    "regroup checkpoint": (["regroup", "checkpoint", "list"], "trainer", 1),
    "kubectl trainingjob": (["kubectl-trainingjob", "get"], "kubernetes", 1),
    "checkpoint": (["python", "-m", "regroup_trainer.checkpoint", "list"], "trainer", 2),
    "agent": (["python", "-m", "regroup_trainer.agent"], "trainer", 2),
    "operator": (["python", "-m", "regroup_operator"], "operator", 2),
}
"""Program -> its command, the extra that it needs, and its exit code without."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_an_extra_its_programs_say_in_one_sentence_what_to_type(
    bare: Path, tmp_path: Path, name: str
) -> None:
    command, extra, code = PROGRAMS[name]
    done = run([bare / command[0], *command[1:]], tmp_path)
    assert done.returncode == code
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert sentence.endswith(
        f"cannot be found: type pip install '.[{extra}]' in a clone of Regroup"
    )
    assert list(tmp_path.iterdir()) == []


def test_without_extras_a_script_may_still_report(bare: Path, tmp_path: Path) -> None:
    line = "from regroup_trainer import report; report(step=1, total=2, loss=0.5)"
    assert run([bare / "python", "-c", line], tmp_path).returncode == 0


def install(text: str, folder: Path, wheel: Path) -> Path:
    """What a page types in a clone, with the wheel of the clone and pinned packages. Returns the
    folder of the programs.
    """
    (extra,) = re.findall(r"^pip install '\.(\[.*\])'$", on_a_page(text))
    return make_environment(folder / "venv", wheel, extra)


@pytest.mark.long
def test_with_the_extra_a_script_runs(wheel: Path, tmp_path: Path) -> None:
    programs = install("pip install '.[trainer]'", tmp_path, wheel)
    (tmp_path / "job.yaml").write_text(SCRIPT)
    (tmp_path / "train.py").write_text(
        "from regroup_trainer import report\nreport(step=3, total=3)\nprint('trained')\n"
    )
    done = run([programs / "regroup", "run", "job.yaml"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0: trained" in done.stdout
    assert "completed: 3 steps" in done.stdout


def test_with_the_extra_the_plugin_asks_for_a_cluster(wheel: Path, tmp_path: Path) -> None:
    programs = install("pip install '.[kubernetes]'", tmp_path, wheel)
    done = run([programs / "kubectl-trainingjob", "get"], tmp_path)
    assert done.returncode == 1
    assert "kubeconfig" in done.stderr
    assert "pip install" not in done.stderr


def test_with_the_extras_a_program_has_the_client(wheel: Path, tmp_path: Path) -> None:
    programs = install("pip install '.[kubernetes,client]'", tmp_path, wheel)
    line = "import cloudpickle, kubernetes; from regroup import TrainingClient"
    done = run([programs / "python", "-c", f"{line}; TrainingClient(backend='local')"], tmp_path)
    assert done.returncode == 0, done.stderr
