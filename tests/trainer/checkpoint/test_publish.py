"""Who may publish and delete, and what a publisher does that is held up until others have taken
over.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from regroup_trainer.checkpoint import catalog, lineage
from regroup_trainer.checkpoint.layout import Layout, Manifest
from regroup_trainer.checkpoint.publish import prune, publish
from regroup_trainer.errors import FencedError
from regroup_trainer.protocol.config import CheckpointPolicy
from regroup_trainer.protocol.generation import GenerationNumber
from tests.support.checkpoints import begin, write_checkpoint, write_files, write_long_manifest

KEEP_ONE = CheckpointPolicy(keep_last=1)
Hold = Callable[[int, Callable[[], object]], None]


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Hold:
    """After having passed so many checks, a publisher is held up, and meanwhile others act."""
    plain = lineage.require_newest

    def hold(checks: int, meanwhile: Callable[[], object]) -> None:
        passed = 0

        def require_newest(layout: Layout, generation: GenerationNumber) -> None:
            nonlocal passed
            plain(layout, generation)
            passed += 1
            if passed == checks:
                monkeypatch.setattr(lineage, "require_newest", plain)
                meanwhile()

        monkeypatch.setattr(lineage, "require_newest", require_newest)

    return hold


def save(layout: Layout, step: int, generation: GenerationNumber) -> None:
    directory = layout.temporary(step, generation)
    publish(layout, write_files(directory, step, generation), directory)


def publishers(layout: Layout) -> dict[int, GenerationNumber | None]:
    found = catalog.published(layout)
    return {it.step: it.manifest.generation if it.manifest else None for it in found}


def names(layout: Layout) -> list[str]:
    return sorted(path.name for path in layout.checkpoints.iterdir() if path.name != "latest")


def test_nothing_is_published_in_a_folder_in_which_the_generation_did_not_begin(
    layout: Layout,
) -> None:
    """Nobody would count it, and the ranks would let go of their state."""
    first = begin(layout, 1)
    layout.lineage_record(first).unlink()
    with pytest.raises(FileNotFoundError, match=r"not the folder .* generation 1\.1 began"):
        save(layout, 10, first)
    assert publishers(layout) == {}


def test_who_began_in_an_empty_folder_can_end_in_the_jobs_own(layout: Layout) -> None:
    """Its last save would wait for ever else."""
    begin(layout, 1)
    save(layout, 10, GenerationNumber(1, 2))
    assert publishers(layout) == {10: (1, 2)}


def test_an_older_generation_publishes_nothing(layout: Layout) -> None:
    first = begin(layout, 1)
    second = begin(layout, 2, parent=1)
    with pytest.raises(FencedError, match=r"generation 1\.2 has begun: generation 1\.1 is over"):
        save(layout, 10, first)
    assert publishers(layout) == {}
    save(layout, 10, second)
    assert publishers(layout) == {10: second}
    assert layout.latest.readlink() == Path("step-10")


def test_a_whole_one_of_the_same_line_stays_and_a_damaged_one_is_replaced(layout: Layout) -> None:
    first = begin(layout, 1)
    save(layout, 10, first)
    second = begin(layout, 2, resumed=10, parent=1)
    save(layout, 10, second)
    assert (publishers(layout), names(layout)) == ({10: first}, ["step-10"])
    (layout.published(10) / "__0_0.distcp").write_bytes(b"shark")
    save(layout, 10, second)
    assert (publishers(layout), names(layout)) == ({10: second}, [".stale-step-10-1-2", "step-10"])


def test_one_of_another_line_is_set_aside_until_the_next_generation_deletes(layout: Layout) -> None:
    save(layout, 10, begin(layout, 1))
    second = begin(layout, 2, parent=1)
    save(layout, 10, second)
    prune(layout, second, KEEP_ONE)
    assert names(layout) == [".stale-step-10-1-2", "step-10"]
    third = begin(layout, 3, resumed=10, parent=2)
    prune(layout, third, KEEP_ONE)
    assert (publishers(layout), names(layout)) == ({10: second}, ["step-10"])


@pytest.mark.parametrize("checks", [1, 2, 3])
def test_who_is_held_up_after_a_check_does_not_replace_what_was_published_meanwhile(
    layout: Layout, hold: Hold, checks: int
) -> None:
    save(layout, 30, begin(layout, 1))
    save(layout, 40, GenerationNumber(1, 1))
    late = begin(
        layout, 2, resumed=30, parent=1
    )  # so that step 40 of the first is of an abandoned line

    def take_over() -> None:
        save(layout, 40, begin(layout, 3, resumed=30, parent=2))

    hold(checks, take_over)
    with pytest.raises(FencedError):
        save(layout, 40, late)
    assert publishers(layout) == {40: GenerationNumber(1, 3), 30: GenerationNumber(1, 1)}
    assert catalog.verify(layout.published(40), *_files(layout, 40)) == ""


@pytest.mark.parametrize("checks", [1, 2])
def test_who_is_held_up_does_not_replace_what_the_others_go_on_from(
    layout: Layout, hold: Hold, checks: int
) -> None:
    """Generation 1.3 has chosen step 40 before 1.2 began, and begins later."""
    save(layout, 40, begin(layout, 1))
    late = begin(layout, 2, resumed=30, parent=1)
    hold(checks, lambda: begin(layout, 3, resumed=40, parent=1))
    with pytest.raises(FencedError):
        save(layout, 40, late)
    assert publishers(layout) == {40: GenerationNumber(1, 1)}


def test_who_is_held_up_before_deleting_leaves_what_the_others_go_on_from(
    layout: Layout, hold: Hold
) -> None:
    late = begin(layout, 1)
    save(layout, 30, late)
    hold(1, lambda: begin(layout, 2, resumed=30, parent=1))
    save(layout, 40, late)
    with pytest.raises(FencedError):
        prune(layout, late, KEEP_ONE)
    assert 30 in publishers(layout)
    save(layout, 40, GenerationNumber(1, 2))
    assert publishers(layout) == {40: GenerationNumber(1, 2), 30: late}


def test_those_that_stay_can_be_read_whatever_a_glance_says(layout: Layout) -> None:
    only = begin(layout, 1)
    for step in (10, 20, 30, 40):
        manifest = write_checkpoint(layout, step, only)
        write_long_manifest(layout, manifest, damaged=step == 30)
    prune(layout, only, CheckpointPolicy(keep_last=2))
    assert names(layout) == ["step-20", "step-30", "step-40"]


@pytest.mark.parametrize("checks", [1, 2])
def test_what_was_taken_away_in_vain_is_given_back(layout: Layout, hold: Hold, checks: int) -> None:
    late = begin(layout, 1)
    for step in (30, 40):
        save(layout, step, late)
    hold(checks, lambda: begin(layout, 2, resumed=30, parent=1))
    with pytest.raises(FencedError):
        prune(layout, late, KEEP_ONE)
    assert (publishers(layout), names(layout)) == ({40: late, 30: late}, ["step-30", "step-40"])


def test_a_volume_that_does_not_answer_takes_nothing_away(
    layout: Layout, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = begin(layout, 1)
    for step in (30, 40):
        save(layout, step, only)

    def fail(_layout: Layout, _generation: GenerationNumber) -> None:
        raise OSError(5, "Input/output error")

    hold(2, lambda: monkeypatch.setattr(lineage, "require_newest", fail))
    with pytest.raises(OSError, match="Input/output error"):
        prune(layout, only, KEEP_ONE)
    assert names(layout) == ["step-30", "step-40"]


def test_a_write_that_was_swept_on_the_way_raises_a_fenced_error(
    layout: Layout, hold: Hold
) -> None:
    late = begin(layout, 1)

    def take_over() -> None:
        catalog.sweep(layout, begin(layout, 2, parent=1))

    hold(1, take_over)
    with pytest.raises(FencedError):
        save(layout, 40, late)
    assert names(layout) == []


def test_what_has_no_readable_manifest_is_set_aside_under_a_free_name(layout: Layout) -> None:
    only = begin(layout, 1)
    layout.published(40).write_text("a file")
    layout.stale(40, only).mkdir()
    save(layout, 40, only)
    assert publishers(layout) == {40: only}
    assert names(layout) == [".stale-step-40-1-1", ".stale-step-40-1-1.2", "step-40"]


def _files(layout: Layout, step: int) -> tuple[Manifest, list[str]]:
    manifest = catalog.read_candidate(layout, step).manifest
    assert manifest is not None
    return manifest, list(manifest.files)
