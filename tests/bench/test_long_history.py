"""The benchmark of long runs writes what a start can read, and measures all of its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import long_history
from bench.long_history import (
    ACTIONS,
    OPERATIONS,
    LongRun,
    measured,
    prune,
    write,
    write_checkpoint,
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LongRun:
    monkeypatch.setattr(long_history, "STEPS", 20)
    run = LongRun(tmp_path, generations=3, ranks=2)
    write(run)
    return run


@pytest.mark.parametrize("operation", ACTIONS)
def test_each_operation_ends_well(run: LongRun, operation: str) -> None:
    ACTIONS[operation](run)


def test_all_checkpoints_but_three_are_pruned_with_their_files(run: LongRun) -> None:
    for step in (10, 20, 30, 40, 50):
        write_checkpoint(run, step)
    newest = [run.layout.published(step) for step in (40, 50, 60)]
    prune(run)
    assert sorted(run.layout.checkpoints.iterdir()) == newest
    assert {len([*folder.iterdir()]) for folder in newest} == {1 + run.ranks}


def test_each_figure_is_measured(run: LongRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.addaudithook", lambda _hook: None)  # it would stay in this process
    names = [name for operation in OPERATIONS for name in measured(operation, run)]
    assert {*names, "broadcast_mb"} == {*long_history.UNITS}
