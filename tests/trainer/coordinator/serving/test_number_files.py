"""No number of a generation is given twice, and each has room on the volume for its record."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.coordinator.reserved_numbers import NUMBERS_AHEAD
from regroup_trainer.coordinator.serving.number_files import SupersededError, reserve
from regroup_trainer.protocol.generation import GenerationNumber
from tests.support import checkpoints
from tests.support.disks import fill, mounted

root_only = pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")


def test_reservations_are_unique_and_return_the_newest_lineage_record(tmp_path: Path) -> None:
    first = reserve(tmp_path / "job", GenerationNumber(2, 1))
    assert first == (GenerationNumber(2, 1), None)
    (tmp_path / "job/lineage/1-9.json").write_text("{}")
    (tmp_path / "job/lineage/1-10.json").write_text("{}")
    assert reserve(tmp_path / "job", GenerationNumber(2, 1)) == (
        GenerationNumber(2, 2),
        GenerationNumber(1, 10),
    )


def test_a_restarted_coordinator_does_not_try_all_numbers_of_its_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lineage").mkdir()
    for n in range(1, 1001):
        (tmp_path / "lineage" / f"2-{n}.claim").touch()
    tried: list[str] = []
    plain_open = os.open

    def noted(path: Path, *flags: int) -> int:
        tried.append(path.name)
        return plain_open(path, *flags)

    monkeypatch.setattr(os, "open", noted)
    assert reserve(tmp_path, GenerationNumber(2, 1))[0] == GenerationNumber(2, 1001)
    assert tried == ["2-1000.claim", "2-1001.claim"]


def test_room_of_former_terms_is_taken_over_and_their_numbers_stay_taken(tmp_path: Path) -> None:
    """All but that of the generation that may be about to begin."""
    for n in (1, 2, 3):
        reserve(tmp_path / "job", GenerationNumber(1, n), own=GenerationNumber(1, 1))
    reserve(tmp_path / "job", GenerationNumber(2, 1))
    names = sorted(path.name for path in (tmp_path / "job/lineage").iterdir())
    numbers = ["1-1.claim", "1-2.claim", "1-3.claim", "2-1.claim"]
    assert names == sorted([*numbers, "1-1.room", "1-2.room", "2-1.room"])


def test_a_coordinator_that_has_a_successor_gets_no_number(tmp_path: Path) -> None:
    reserve(tmp_path / "job", GenerationNumber(2, 1))
    with pytest.raises(SupersededError, match="2"):
        reserve(tmp_path / "job", GenerationNumber(1, 9))
    assert reserve(tmp_path / "job", GenerationNumber(2, 1))[0] == GenerationNumber(2, 2)


@root_only
def test_a_number_comes_with_room_for_its_record_on_a_volume_that_is_full_by_then(
    tmp_path: Path,
) -> None:
    with mounted(tmp_path / "disk", "1m") as disk:
        layout = Layout(disk / "job")
        number, _ = reserve(layout.directory, GenerationNumber(1, 1))
        fill(disk / "hog")
        with pytest.raises(OSError, match="No space left"):
            reserve(layout.directory, GenerationNumber(1, 2))
        names = sorted(path.name for path in layout.lineage.iterdir())
        assert names == ["1-1.claim", "1-1.room"]  # the number that was refused is not taken
        checkpoints.begin(layout, 1)
        assert set(lineage.read(layout)) == {number}


def reserve_all(
    directory: Path, term: int, own: GenerationNumber | None = None
) -> list[GenerationNumber]:
    """The numbers that one process of a coordinator gets of a volume, until that refuses."""
    numbers: list[GenerationNumber] = []
    with contextlib.suppress(OSError):
        while len(numbers) < NUMBERS_AHEAD:
            first = GenerationNumber(term, numbers[-1].n + 1 if numbers else 1)
            number, _ = reserve(directory, first, own or next(iter(numbers), None))
            numbers.append(number)
    return numbers


@pytest.fixture
def refusing_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A job's directory on a full volume, which takes not even an empty file. A coordinator has
    reserved numbers before, and its first generation has begun.
    """
    with mounted(tmp_path / "disk", "1m") as disk:
        reserve_all(disk / "job", 1)
        checkpoints.begin(Layout(disk / "job"), 1)
        fill(disk / "hog")
        plain_open = os.open

        def refuse(path: Path, flags: int, *mode: int) -> int:
            if flags & os.O_CREAT and not path.exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return plain_open(path, flags, *mode)

        monkeypatch.setattr(os, "open", refuse)
        yield disk / "job"


@root_only
def test_coordinators_that_start_on_a_full_volume_take_over_unused_numbers(
    refusing_volume: Path,
) -> None:
    """Three processes of the same term, and two of newer ones. No number is given twice, and each
    has the room for its generation's record.
    """
    layout, given = Layout(refusing_volume), [GenerationNumber(1, n) for n in range(1, 9)]
    for term in (1, 1, 1, 2, 3):
        numbers = reserve_all(refusing_volume, term)
        assert len(numbers) >= NUMBERS_AHEAD - 2
        assert all(number.term == term for number in numbers)
        assert all(layout.lineage_room(number).exists() for number in numbers)
        given += numbers
    assert len(set(given)) == len(given)
    record = lineage.read(layout)[checkpoints.FIRST].model_copy(update={"generation": given[-1]})
    lineage.begin(layout, record)
    assert set(lineage.read(layout)) == {checkpoints.FIRST, given[-1]}


@root_only
def test_a_coordinator_on_a_full_volume_leaves_its_own_room_and_that_of_a_begin_under_way(
    refusing_volume: Path,
) -> None:
    """The lowest number that a former process has reserved may have been announced by it."""
    numbers = reserve_all(refusing_volume, 1)
    assert reserve_all(refusing_volume, 1, own=numbers[0]) == []
    layout = Layout(refusing_volume)
    assert layout.lineage_room(GenerationNumber(1, 2)).exists()
    checkpoints.begin(layout, numbers[0].n)
    assert len(reserve_all(refusing_volume, 1, own=numbers[0])) == 1
