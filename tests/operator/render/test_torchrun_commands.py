"""The command lines of stock torchrun, run where a script has modules named as Python's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from regroup_operator.api.user_script import Script
from regroup_operator.render.torchrun_commands import Rendezvous, agent_command, store_command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with such modules."""
    for name in ("select", "signal", "pickle", "base64"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('of the program')")
    return tmp_path


@pytest.mark.timeout(200)
def test_an_agent_takes_no_modules_of_the_working_directory(folder: Path) -> None:
    meeting = Rendezvous("127.0.0.1:1", "a-1", "1:1", 1, 0, "127.0.0.1")
    command = [*agent_command(Script(sys.executable, ("train.py",)), meeting)[:3], "--help"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--nproc-per-node" in done.stdout


@pytest.mark.parametrize(
    ("error", "left"), [("RendezvousClosedError", ""), ("ChildFailedError", "rank 1 failed")]
)
def test_an_agent_that_nobody_meets_does_not_end_by_a_failure_of_before(
    tmp_path: Path, error: str, left: str
) -> None:
    module = tmp_path / "torch/distributed/run.py"
    module.parent.mkdir(parents=True)
    for package in (module.parent, module.parent.parent):
        (package / "__init__.py").touch()
    module.write_text(f"class {error}(Exception): pass\ndef main(): raise {error}\n")
    message = tmp_path / "message"
    message.write_text("rank 1 failed")
    meeting = Rendezvous("127.0.0.1:1", "a-1", "1:1", 1, 0, "127.0.0.1")
    command = agent_command(Script(sys.executable, ("train.py",)), meeting)[:3]
    environment = {"PYTHONPATH": str(tmp_path), "REGROUP_TERMINATION_LOG": str(message)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert error in done.stderr
    assert message.read_text() == left


@pytest.mark.timeout(200)
def test_a_store_takes_no_modules_of_the_working_directory(folder: Path) -> None:
    command = store_command(sys.executable, "a-1", 0)
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as store:
        assert store.stdout is not None
        assert store.stdout.readline().startswith("INFO the store listens on port")
        store.terminate()
