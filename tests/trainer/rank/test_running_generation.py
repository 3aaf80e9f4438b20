"""A generation that ends by an error, or is to end while its volume refuses the save for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from regroup_trainer.protocol.generation import Decision, GenerationNumber
from regroup_trainer.protocol.rank_messages import Busy, Finished, VolumeProblem
from regroup_trainer.rank import running_generation
from regroup_trainer.rank.running_generation import RunningGeneration
from tests.support.disks import mounted
from tests.support.ranks import RankOutcome, Template, generation, succeeded, train_config

root_only = pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")
ENDED_AT = 4


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system without room for a checkpoint, until its file `hog` is deleted."""
    with mounted(tmp_path / "disk", "1536k") as disk:
        (disk / "hog").write_bytes(bytes(1_300_000))
        yield disk


def end(
    template: Template, directory: Path, entry: str, options: dict[str, Any], how: Decision
) -> list[RankOutcome]:
    """Two ranks, each with a part of the state, are asked to end after a step."""
    config = train_config(parallelism={"strategy": "fsdp"})
    outcomes = template.run(
        generation(directory, 2, config),
        entry=f"tests.support.rank_faults:{entry}",
        options=options,
        decisions={ENDED_AT: how},
    )
    return succeeded(outcomes)


def problems(outcome: RankOutcome) -> list[VolumeProblem]:
    return [report.volume for report in outcome.of(Busy) if report.volume is not None]


@root_only
@pytest.mark.parametrize(
    ("how", "reason"),
    [(Decision.LEAVE, "leave"), (Decision.RELOAD, "leave"), (Decision.STOP, "stop")],
)
def test_a_planned_end_waits_until_the_volume_takes_the_state(
    template: Template, full_disk: Path, how: Decision, reason: str
) -> None:
    options = {"hog": str(full_disk / "hog"), "failures": 2}
    outcomes = end(template, full_disk / "job", "free_the_disk", options, how)
    rank0 = outcomes[0]
    assert [(report.step, report.stage) for report in rank0.failed] == [(4, "write")] * 2
    assert [report.step for report in rank0.saved] == [ENDED_AT]
    assert [(e.step, e.reason) for o in outcomes for e in o.of(Finished)] == [(4, reason)] * 2
    found = problems(rank0)[0]
    assert found.path == f"{full_disk}/job/checkpoints"
    assert "No space left on device" in found.error
    assert found.at_risk.startswith("The ranks keep step 4 in memory")


def test_all_ranks_save_again_where_one_could_not(template: Template, tmp_path: Path) -> None:
    """The parts of a checkpoint are of one attempt."""
    options = {"rank": 1, "step": ENDED_AT, "bytes": 5000, "times": 1}
    rank0 = end(template, tmp_path, "limit_file_size", options, Decision.LEAVE)[0]
    assert [report.step for report in rank0.failed] == [ENDED_AT]
    assert [report.step for report in rank0.saved] == [ENDED_AT]
    config = train_config(parallelism={"strategy": "fsdp"})
    following = generation(tmp_path, 3, config, number=GenerationNumber(1, 2))
    resumed = succeeded(template.run(following))
    assert [outcome.restored.step for outcome in resumed] == [ENDED_AT] * 3


@root_only
def test_a_job_that_is_to_end_without_a_save_does_not_wait_for_the_volume(
    template: Template, full_disk: Path
) -> None:
    record = generation(full_disk / "job", 2, train_config(), checkpoint={"on_termination": "Skip"})
    outcomes = succeeded(template.run(record, decisions={ENDED_AT: Decision.STOP}))
    assert (outcomes[0].saved, outcomes[0].failed) == ([], [])


class Hanging:
    """A save, a snapshot and a history that take all the time that they get."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ends: list[str] = []

    def monotonic(self) -> float:
        return self.now

    def give_up(self, seconds: float) -> None:
        self.ends.append("save")
        self.now += seconds

    def close(self, seconds: float) -> None:
        self.ends.append("close")
        self.now += seconds

    def let_go(self) -> None:
        self.ends.append("copy")


def ending(monkeypatch: pytest.MonkeyPatch, *, is_over: bool) -> tuple[RunningGeneration, Hanging]:
    """A generation whose state may stay in memory, and what ends with it."""
    hanging, made = Hanging(), RunningGeneration.__new__(RunningGeneration)
    monkeypatch.setattr(running_generation, "time", hanging)
    made.busy = cast(Any, SimpleNamespace(end=lambda: None))
    made._channel = cast(Any, SimpleNamespace(is_over=lambda: is_over))
    made._checkpointer = made._snapshots = made._history = cast(Any, hanging)
    made._retains, made._has_ended = True, False
    return made, hanging


def test_a_rank_that_fails_holds_up_the_others_for_one_moment_however_much_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generation, hanging = ending(monkeypatch, is_over=False)
    generation.give_up(ValueError("a bug of the user's own"))
    generation.give_up(ValueError("again"))
    assert hanging.ends == ["save", "close", "close"]
    assert hanging.now == 2.0


def test_a_rank_whose_peers_keep_the_state_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    generation, hanging = ending(monkeypatch, is_over=True)
    generation.give_up(ValueError("it follows from cut connections"))
    assert hanging.ends == ["copy", "close", "close"]
    assert hanging.now == 0.0
