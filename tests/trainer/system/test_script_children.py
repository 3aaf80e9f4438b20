"""Processes that a script starts, and what they get of the checks of its rendezvous."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys
from dataclasses import astuple

import pytest

from regroup_trainer.system.rendezvous_check import RankPlace
from regroup_trainer.system.script_children import AfterImport, ScriptChildren

PLACE = RankPlace(rank=1, world_size=2, local_rank=0, local_world_size=1, hosts=2)
FIELDS = "def watch_child(*fields):\n    return fields\n"
"""A program that makes no checks."""
ENDS = """
import sys
from regroup_trainer.system.rendezvous_check import RankPlace
from regroup_trainer.system.script_children import ScriptChildren
ScriptChildren(int(sys.argv[1]), RankPlace(0, 1, 0, 1, 1), "").end_script("a problem")
"""


@pytest.mark.parametrize("program", [FIELDS, f"import os\n{FIELDS}"])
def test_a_spawned_process_and_its_own_children_get_the_same(program: str) -> None:
    children = ScriptChildren(7, PLACE, program)
    assert pickle.loads(pickle.dumps(children)) == (7, astuple(PLACE), program)


@pytest.mark.parametrize("program", ["", "import a_module_that_is_nowhere", "x ="])
def test_a_process_where_the_checks_cannot_be_made_goes_on_without(program: str) -> None:
    assert pickle.loads(pickle.dumps(ScriptChildren(7, PLACE, program))) is None


def test_a_process_with_the_number_that_the_script_had_gets_no_signal() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        command = [sys.executable, "-c", ENDS, str(other.pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (2, "ConfigurationError: a problem\n")
        assert other.poll() is None
        other.kill()


def test_what_waits_for_an_import_outlives_a_question_for_the_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    calls: list[bool] = []
    finder = AfterImport("colorsys", lambda: calls.append("colorsys" in sys.modules))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert importlib.util.find_spec("colorsys") is not None
    assert importlib.util.find_spec("colorsys") is not None
    assert calls == []
    importlib.import_module("colorsys")
    importlib.reload(sys.modules["colorsys"])
    assert calls == [True]
    assert finder not in sys.meta_path
