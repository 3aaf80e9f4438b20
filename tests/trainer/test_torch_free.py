"""What must run without torch is imported in a process where torch and numpy cannot be imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

TEMPLATE = "regroup_trainer.agent.template"
"""The one module of the agent that loads torch. It runs in a process of its own."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize(
    "packages",
    [
        ["regroup_trainer.protocol", "regroup_trainer.system"],
        ["regroup_trainer.snapshots.places", "regroup_trainer.snapshots.neighbours"],
        ["regroup_trainer.coordinator"],
        ["regroup_trainer.agent", f"-{TEMPLATE}"],
        ["regroup_operator"],
        ["regroup"],
    ],
    ids=lambda packages: packages[0],
)
def test_it_is_imported_where_torch_cannot_be(packages: list[str]) -> None:
    done = run("-m", "tests.support.import_without_torch", *packages)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= len([name for name in packages if not name.startswith("-")])


def test_a_module_that_needs_torch_would_be_found() -> None:
    done = run("-m", "tests.support.import_without_torch", "regroup_trainer.rank")
    assert done.returncode != 0
    assert "is forbidden here" in done.stderr


def test_the_package_loads_torch_only_for_its_session() -> None:
    forbid = "import sys; from tests.support.import_without_torch import Refuse; "
    forbid += "sys.meta_path.insert(0, Refuse()); import regroup_trainer; "
    assert run("-c", forbid + "print(dir(regroup_trainer))").returncode == 0
    done = run("-c", forbid + "regroup_trainer.Session")
    assert done.returncode != 0
    assert "torch is forbidden here" in done.stderr


def test_a_script_may_report_where_torch_cannot_be_imported() -> None:
    forbid = "import sys; from tests.support.import_without_torch import Refuse; "
    forbid += "sys.meta_path.insert(0, Refuse()); from regroup_trainer import report; "
    done = run("-c", forbid + "report(step=1, total=2, loss=0.5); report(busy='evaluation')")
    assert done.returncode == 0, done.stderr
