"""What a new generation may start from, by policy and lineage."""

from __future__ import annotations

import pytest

from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.checkpoint.lineage import LineageRecord
from regroup_trainer.checkpoint.selection import select
from regroup_trainer.errors import CheckpointError, ConfigurationError
from regroup_trainer.protocol.config import ResumePolicy
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    GenerationRecord,
    SnapshotNumber,
    SnapshotSource,
)
from regroup_trainer.protocol.ledger import Ledger
from tests.support.checkpoints import DATA, write_checkpoint, write_long_manifest
from tests.support.ranks import generation, train_config


def began(layout: Layout, n: int, resumed: int, **resume: object) -> GenerationNumber:
    number = GenerationNumber(1, n)
    lineage.begin(
        layout,
        LineageRecord(
            generation=number,
            parent=GenerationNumber(1, n - 1) if n > 1 else None,
            resumed_from_step=resumed,
            resume=ResumePolicy.model_validate(resume),
            data=DATA,
        ),
    )
    return number


def upcoming(layout: Layout, **resume: object) -> GenerationRecord:
    return generation(
        layout.directory, 1, train_config(), number=GenerationNumber(1, 9), resume=resume
    )


def candidates(layout: Layout, **resume: object) -> list[int]:
    return [candidate.step for candidate in select(layout, upcoming(layout, **resume)).candidates]


def test_a_folder_without_the_generation_of_a_snapshot_is_not_the_jobs(layout: Layout) -> None:
    number = SnapshotNumber(step=10, generation=GenerationNumber(1, 3), shards=1)
    source = SnapshotSource(number=number, places=("127.0.0.1:1",))
    with pytest.raises(FileNotFoundError, match=r"not the folder .* generation 1\.3 began"):
        select(layout, upcoming(layout).model_copy(update={"snapshot": source}))


def test_a_job_that_has_trained_waits_for_its_folder_unless_it_is_to_start_over(
    layout: Layout,
) -> None:
    def after_training(**resume: object) -> GenerationRecord:
        record = upcoming(layout, **resume)
        desired = record.desired.model_copy(update={"seed": Ledger(seconds={"step": 2.5})})
        return record.model_copy(update={"desired": desired})

    with pytest.raises(OSError, match=r"not its folder .* resume\.policy: Never"):
        select(layout, after_training())
    assert select(layout, after_training(policy="Never")).scratch
    write_checkpoint(layout, 10, began(layout, 1, resumed=0))
    assert [found.step for found in select(layout, after_training()).candidates] == [10]


def test_a_first_generation_starts_from_scratch(layout: Layout) -> None:
    selection = select(layout, upcoming(layout))
    assert (selection.parent, selection.candidates, selection.scratch) == (None, (), True)


def test_the_newest_of_the_lineage_come_first_and_those_beyond_a_resume_are_left_out(
    layout: Layout,
) -> None:
    first = began(layout, 1, resumed=0)
    for step in (10, 20, 30):
        write_checkpoint(layout, step, first)
    write_checkpoint(layout, 25, began(layout, 2, resumed=20))
    assert candidates(layout) == [25, 20, 10]
    assert not select(layout, upcoming(layout)).scratch


def test_damage_behind_the_head_of_a_newer_checkpoint_does_not_cost_the_snapshot(
    layout: Layout,
) -> None:
    first = began(layout, 1, resumed=0)
    manifest = write_checkpoint(layout, 20, first)
    number = SnapshotNumber(step=15, generation=first, shards=1)
    source = SnapshotSource(number=number, places=("127.0.0.1:1",))
    record = upcoming(layout).model_copy(update={"snapshot": source})
    write_long_manifest(layout, manifest)
    assert select(layout, record).without_memory == "the checkpoint of step 20 is newer"
    write_long_manifest(layout, manifest, damaged=True)
    assert select(layout, record).without_memory == ""


def test_corrupt_ones_set_aside_forbid_starting_from_scratch(layout: Layout) -> None:
    layout.corrupt(5, GenerationNumber(1, 1)).mkdir()
    selection = select(layout, upcoming(layout))
    assert (selection.candidates, selection.scratch) == ((), False)


def test_never_is_applied_once(layout: Layout) -> None:
    write_checkpoint(layout, 10, began(layout, 1, resumed=0))
    assert candidates(layout, policy="Never") == []
    write_checkpoint(layout, 3, began(layout, 2, resumed=0, policy="Never"))
    assert candidates(layout, policy="Never") == [3]


def test_a_named_step_is_applied_once(layout: Layout) -> None:
    first = began(layout, 1, resumed=0)
    for step in (10, 20):
        write_checkpoint(layout, step, first)
    assert candidates(layout, policy="Step", step=10) == [10]
    write_checkpoint(layout, 15, began(layout, 2, resumed=10, policy="Step", step=10))
    assert candidates(layout, policy="Step", step=10) == [15, 10]


def test_a_missing_step_names_those_that_exist(layout: Layout) -> None:
    with pytest.raises(
        CheckpointError, match="there is no checkpoint of step 7: choose one of none at all"
    ):
        select(layout, upcoming(layout, policy="Step", step=7))


def test_resuming_from_another_job_is_refused(layout: Layout) -> None:
    with pytest.raises(ConfigurationError, match=r"resume\.policy: 'Job' is not supported yet"):
        select(layout, upcoming(layout, policy="Job", job_name="other"))


def test_a_restart_on_request_starts_from_its_step_however_often_it_is_the_same(
    layout: Layout,
) -> None:
    write_checkpoint(layout, 10, began(layout, 1, resumed=0))
    write_checkpoint(layout, 15, began(layout, 2, resumed=10, policy="Step", step=10))
    record = upcoming(layout, policy="Step", step=10)
    assert [one.step for one in select(layout, record).candidates] == [15, 10]
    desired = record.desired.model_copy(update={"restart_request": "now-2@10"})
    again = record.model_copy(update={"desired": desired})
    assert [one.step for one in select(layout, again).candidates] == [10]
