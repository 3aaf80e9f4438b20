"""Which generations continue which, and whose checkpoints therefore count."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.layout import DataIdentity, Layout
from regroup_trainer.checkpoint.lineage import LineageRecord
from regroup_trainer.errors import CheckpointError, FencedError
from regroup_trainer.protocol.config import ResumePolicy
from regroup_trainer.protocol.generation import GenerationNumber

DATA = DataIdentity(fingerprint="f", samples=100, seed=0, global_batch_size=4, sequence_length=8)


def link(
    term: int, n: int, resumed: int = 0, parent: tuple[int, int] | None = None
) -> LineageRecord:
    return LineageRecord(
        generation=GenerationNumber(term, n),
        parent=GenerationNumber(*parent) if parent else None,
        resumed_from_step=resumed,
        resume=ResumePolicy(),
        data=DATA,
    )


def records(*links: LineageRecord) -> dict[GenerationNumber, LineageRecord]:
    return {found.generation: found for found in links}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    layout.lineage.mkdir()
    return layout


def test_a_generation_begins_once_and_is_read_back(layout: Layout) -> None:
    lineage.begin(layout, link(1, 2, resumed=7))
    assert lineage.read(layout) == records(link(1, 2, resumed=7))
    with pytest.raises(FencedError, match=r"generation 1\.2 has begun before"):
        lineage.begin(layout, link(1, 2))


def test_an_older_generation_cannot_begin_after_a_newer_one(layout: Layout) -> None:
    lineage.begin(layout, link(2, 1))
    with pytest.raises(FencedError, match=r"generation 2\.1 has begun: generation 1\.9 is over"):
        lineage.begin(layout, link(1, 9))


def test_a_damaged_record_is_named(layout: Layout) -> None:
    layout.lineage_record(GenerationNumber(1, 1)).write_text("{")
    with pytest.raises(CheckpointError, match=r"lineage record .*/1-1\.json is damaged"):
        lineage.read(layout)


@pytest.mark.parametrize("parent", [(1, 2), (1, 3), (2, 1)])
def test_a_record_whose_parent_is_not_older_is_damaged(
    layout: Layout, parent: tuple[int, int]
) -> None:
    """Parents in a circle would be followed for ever."""
    for number, of in ((2, parent), (3, (1, 2))):
        path = layout.lineage_record(GenerationNumber(1, number))
        path.write_text(link(1, number, parent=of).model_dump_json())
    with pytest.raises(CheckpointError, match=r"/1-2\.json is damaged \(its parent, generation"):
        lineage.up_to(layout, GenerationNumber(1, 3))


def test_a_record_of_another_generation_is_damaged(layout: Layout) -> None:
    layout.lineage_record(GenerationNumber(1, 1)).write_text(link(1, 3).model_dump_json())
    with pytest.raises(CheckpointError, match=r"/1-1\.json is damaged \(it is that of generation"):
        lineage.read(layout)


def test_a_record_that_is_missing_is_named(layout: Layout) -> None:
    lineage.begin(layout, link(1, 2, parent=(1, 1)))
    with pytest.raises(CheckpointError, match=r"lineage record lineage/1-1\.json is missing"):
        lineage.up_to(layout, GenerationNumber(1, 2))


def test_what_came_before_a_generation_is_read_once(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (1, 2, 3, 4):
        lineage.begin(layout, link(1, n, parent=(1, n - 1) if n > 1 else None))
    opened: list[Path] = []
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        opened.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    assert [found.generation.n for found in lineage.up_to(layout, GenerationNumber(1, 3))] == [
        1,
        2,
        3,
    ]
    assert len(opened) == 4
    for _ in range(3):
        links = lineage.ending_with(layout, GenerationNumber(1, 4))
        assert [found.generation.n for found in links] == [1, 2, 3, 4]
    assert {path.name for path in opened[4:]} == {"1-4.json"}


def test_a_folder_that_was_emptied_is_read_anew(layout: Layout) -> None:
    newest = GenerationNumber(1, 2)
    for resumed in (7, 3):
        lineage.begin(layout, link(1, 1))
        lineage.begin(layout, link(1, 2, resumed, (1, 1)))
        os.utime(layout.lineage_record(newest), (resumed, resumed))
        assert lineage.up_to(layout, newest)[-1].resumed_from_step == resumed
        shutil.rmtree(layout.lineage)
        layout.lineage.mkdir()


def test_more_records_than_threads_are_all_read(layout: Layout) -> None:
    for n in range(1, 51):
        layout.lineage_record(GenerationNumber(1, n)).write_text(link(1, n).model_dump_json())
    assert lineage.read(layout) == records(*(link(1, n) for n in range(1, 51)))


def test_files_that_are_being_written_are_not_generations(layout: Layout) -> None:
    (layout.lineage / ".1-1.json.4711").write_text("{")
    assert lineage.read(layout) == {}


def test_the_parent_is_the_newest_before_it_that_began() -> None:
    began = records(link(1, 1), link(1, 3), link(1, 7))
    assert lineage.parent_of(began, GenerationNumber(2, 1)) == (1, 7)
    assert lineage.parent_of(began, GenerationNumber(1, 5)) == (1, 3)
    assert lineage.parent_of({}, GenerationNumber(2, 1)) is None


def test_a_generation_that_trained_nothing_does_not_end_the_line_before_it(layout: Layout) -> None:
    for number in (1, 2, 3):
        lineage.begin(layout, link(1, number))
    third, unused = GenerationNumber(1, 4), {GenerationNumber(1, 3)}
    assert lineage.newest_committing(layout, third, ()) == (1, 3)
    assert lineage.newest_committing(layout, third, unused) == (1, 2)
    with pytest.raises(FencedError):
        lineage.newest_committing(layout, GenerationNumber(1, 2), unused)


def test_a_checkpoint_counts_until_a_later_generation_resumes_below_it() -> None:
    links = (link(1, 1), link(1, 2, resumed=20), link(1, 3, resumed=10))
    first, second = GenerationNumber(1, 1), GenerationNumber(1, 2)
    assert [step for step in (10, 20, 30) if lineage.counts(step, first, links)] == [10]
    assert not lineage.counts(30, second, links)
    assert lineage.counts(30, GenerationNumber(1, 3), links)


def test_what_a_straggler_of_an_abandoned_line_publishes_never_counts() -> None:
    """Generation 1.7 goes on beside 2.1, which continues 1.5."""
    began = records(link(1, 5), link(1, 7, 40, (1, 5)), link(2, 1, 50, (1, 5)))
    current = lineage.chain(began, GenerationNumber(2, 1))
    assert not lineage.counts(60, GenerationNumber(1, 7), current)
    assert lineage.counts(50, GenerationNumber(1, 5), current)


@given(st.lists(st.integers(0, 9), max_size=8))
def test_the_steps_that_count_are_those_of_a_plain_computation(resumed: list[int]) -> None:
    links = tuple(link(1, n, step) for n, step in enumerate(resumed))
    for n in range(len(links)):
        for step in range(10):
            plain = all(later.resumed_from_step >= step for later in links[n + 1 :])
            assert lineage.counts(step, GenerationNumber(1, n), links) is plain
    assert not lineage.counts(0, GenerationNumber(2, 1), links)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_a_run_of_any_losses_resumes_only_from_steps_that_it_still_has(
    trained: list[int], data: st.DataObject
) -> None:
    """Each generation resumes from any checkpoint that counts and trains on, saving every step."""
    links: tuple[LineageRecord, ...] = ()
    saved: list[tuple[int, GenerationNumber]] = []
    line = [0]  # by step: the generation whose state it is
    for n, steps in enumerate(trained, start=1):
        counting = [(step, by) for step, by in saved if lineage.counts(step, by, links)]
        resumed, by = data.draw(st.sampled_from([(0, GenerationNumber(1, 0)), *counting]))
        assert resumed == 0 or line[resumed] == by.n
        links += (link(1, n, resumed),)
        line = line[: resumed + 1] + [n] * steps
        saved += [
            (step, GenerationNumber(1, n)) for step in range(resumed + 1, resumed + 1 + steps)
        ]
