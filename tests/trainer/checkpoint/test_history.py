"""The audit of committed steps finds what is wrong with them."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from pydantic import ValidationError

from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.history import CommittedStep, audit, committed, known_end, last_step
from regroup_trainer.checkpoint.history_writer import Beginning, History
from regroup_trainer.checkpoint.layout import DataIdentity, Layout
from regroup_trainer.checkpoint.lineage import LineageRecord
from regroup_trainer.data.order import SampleOrder, digest
from regroup_trainer.protocol.config import ResumePolicy
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.system import durable

DEADLINE = 30.0
DATA = DataIdentity(fingerprint="f", samples=50, seed=3, global_batch_size=4, sequence_length=8)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    layout.lineage.mkdir()
    layout.history.mkdir()
    return layout


def step(n: int, number: int, **fields: object) -> CommittedStep:
    first = (number - 1) * 4
    ids = SampleOrder(DATA.samples, DATA.seed).ids(range(first, first + 4))
    values = {
        "generation": GenerationNumber(1, n),
        "step": number,
        "world": 2,
        "epoch": first // DATA.samples,
        "first": first,
        "count": 4,
        "hash": digest(ids),
        "loss": 1.0 / number,
    }
    return CommittedStep.model_validate({**values, **fields})


def ran(layout: Layout, n: int, resumed: int, steps: list[CommittedStep]) -> None:
    """A generation that began, and committed these steps."""
    begin(layout, n, resumed)
    number = GenerationNumber(1, n)
    history = History(layout, number, Beginning(resumed))
    for committed_step in steps:
        history.append(committed_step)
    history.sync()
    history.close(DEADLINE)


def begin(layout: Layout, n: int, resumed: int) -> None:
    parent = GenerationNumber(1, n - 1) if n > 1 else None
    number = GenerationNumber(1, n)
    record = LineageRecord(
        generation=number,
        parent=parent,
        resumed_from_step=resumed,
        resume=ResumePolicy(),
        data=DATA,
    )
    lineage.begin(layout, record)


def test_an_undisturbed_run_has_no_problems(layout: Layout) -> None:
    ran(layout, 1, 0, [step(1, number) for number in range(1, 31)])  # over two ends of epochs
    assert audit(layout.directory) == []
    assert [found.loss for found in committed(layout.directory)] == [
        1.0 / number for number in range(1, 31)
    ]


def test_a_history_without_lines_ends_where_its_generations_began(layout: Layout) -> None:
    assert known_end(layout, ()) is None
    ran(layout, 1, 0, [])
    ran(layout, 2, 4, [])
    end = known_end(layout, lineage.ending_with(layout, GenerationNumber(1, 2)))
    assert end is not None
    assert (end.step, end.written_step, end.world_size) == (0, 0, 0)


def test_lost_work_is_not_part_of_the_run(layout: Layout) -> None:
    ran(layout, 1, 0, [step(1, number) for number in range(1, 8)])
    ran(layout, 2, 4, [])  # ended before its first step
    ran(layout, 3, 4, [step(3, number) for number in range(5, 10)])
    assert [(found.generation.n, found.step) for found in committed(layout.directory)] == [
        *((1, number) for number in range(1, 5)),
        *((3, number) for number in range(5, 10)),
    ]
    assert audit(layout.directory) == []


def test_a_gap_is_found(layout: Layout) -> None:
    ran(layout, 1, 0, [step(1, 1), step(1, 3)])
    assert audit(layout.directory) == [
        "step 1 of the lineage is followed by step 3 of generation 1.1",
        "step 3 begins with sample 8 instead of 4",
    ]


def test_a_repeated_step_is_found(layout: Layout) -> None:
    ran(layout, 1, 0, [step(1, 1), step(1, 2), step(1, 2)])
    assert len(audit(layout.directory)) == 2


def test_samples_trained_twice_are_found(layout: Layout) -> None:
    ran(layout, 1, 0, [step(1, 1), step(1, 2, first=0)])
    assert audit(layout.directory) == [
        "step 2 begins with sample 0 instead of 4",
        "step 2 trained on other samples than 0..3",
    ]


def test_wrong_samples_in_the_right_range_are_found(layout: Layout) -> None:
    ran(layout, 1, 0, [step(1, 1, hash=1)])
    assert audit(layout.directory) == ["step 1 trained on other samples than 0..3"]


def test_a_short_batch_is_found(layout: Layout) -> None:
    ran(layout, 1, 0, [step(1, 1, count=3)])
    assert "step 1 trained on 3 samples instead of 4" in audit(layout.directory)


def test_the_newest_step_of_a_line_is_not_beyond_where_it_was_left(layout: Layout) -> None:
    ran(layout, 1, 0, [step(1, number) for number in range(1, 31)])
    ran(layout, 2, 20, [])
    records = lineage.read(layout)
    assert last_step(layout, lineage.chain(records, GenerationNumber(1, 1))) == 30
    assert last_step(layout, lineage.chain(records, GenerationNumber(1, 2))) == 20


def test_a_half_written_last_line_is_left_out(layout: Layout) -> None:
    ran(layout, 1, 0, [step(1, 1), step(1, 2)])
    path = layout.history_file(GenerationNumber(1, 1))
    os.truncate(path, path.stat().st_size - 10)
    assert [found.step for found in committed(layout.directory)] == [1]


def test_a_damaged_line_within_a_history_is_an_error(layout: Layout) -> None:
    ran(layout, 1, 0, [step(1, 1)])
    path = layout.history_file(GenerationNumber(1, 1))
    path.write_text('{"step"\n' + path.read_text())
    with pytest.raises(ValidationError):
        committed(layout.directory)


def test_a_replay_keeps_no_step_in_memory(layout: Layout) -> None:
    begin(layout, 1, 0)
    lines = (step(1, number).model_dump_json() + "\n" for number in range(1, 2001))
    layout.history_file(GenerationNumber(1, 1)).write_text("".join(lines))
    tracemalloc.start()
    try:
        assert audit(layout.directory) == []
        assert tracemalloc.get_traced_memory()[1] < 400_000  # with all in memory 2.5 MB
    finally:
        tracemalloc.stop()


def test_an_empty_directory_has_no_steps(tmp_path: Path) -> None:
    assert committed(tmp_path) == []
    assert audit(tmp_path) == []


def test_steps_that_were_left_out_and_recorded_are_one_sentence(layout: Layout) -> None:
    ran(layout, 1, 0, [step(1, 1), step(1, 2), step(1, 7), step(1, 8)])
    durable.append(layout.history_gaps(GenerationNumber(1, 1)), '{"first": 3, "last": 6}\n')
    assert audit(layout.directory) == ["steps 3 to 6 were left out: the volume was away"]
