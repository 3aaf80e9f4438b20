"""Files appear whole or not at all."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from regroup_trainer.system import durable


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can grow above this size: a write stops in the middle, as on a full volume."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_is_created_once(tmp_path: Path) -> None:
    durable.create(tmp_path / "a", "first")
    with pytest.raises(FileExistsError):
        durable.create(tmp_path / "a", "second")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "first"}


def test_a_file_takes_the_place_of_the_room_that_was_reserved(tmp_path: Path) -> None:
    durable.reserve_room(tmp_path / "room", 4096)
    room = (tmp_path / "room").stat()
    durable.create(tmp_path / "a", "first", tmp_path / "room")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "first"}
    assert (tmp_path / "a").stat().st_ino == room.st_ino


def test_room_that_is_gone_is_done_without(tmp_path: Path) -> None:
    durable.create(tmp_path / "a", "first", tmp_path / "room")
    assert (tmp_path / "a").read_text() == "first"


def test_who_could_not_flush_the_name_of_its_file_may_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(durable, "sync", fail)
        with pytest.raises(OSError, match="Input/output"):
            durable.create(tmp_path / "a", "first")
    durable.create(tmp_path / "a", "first")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "first"}


def test_a_directory_is_never_renamed_over_another(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    with pytest.raises(OSError, match="not empty"):
        durable.rename(tmp_path / "new", tmp_path / "old")


def test_a_line_that_is_repeated_after_half_of_it_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "gaps"
    durable.append(path, "first\n")
    with room_for(9), pytest.raises(OSError, match="too large"):
        durable.append(path, "second\n")
    durable.append(path, "second\n")
    durable.append(path, "third\n")
    assert path.read_text() == "first\nsec\nsecond\nthird\n"
