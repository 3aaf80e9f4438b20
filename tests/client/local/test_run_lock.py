"""One `regroup run` at a time in a folder."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from regroup.local.run_lock import FolderError, is_held, locked
from tests.support.disks import fill, mounted, remount
from tests.support.run_command import run_script_job


def test_a_second_run_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(FolderError) as refused, locked(tmp_path):
        pass
    assert str(tmp_path) in str(refused.value)
    assert f"(process {os.getpid()})" in str(refused.value)
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("launcher", ["regroup", "torchrun"])
def test_the_command_says_who_has_the_folder_and_starts_nothing(
    tmp_path: Path, launcher: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with locked(folder):
        result = run_script_job(tmp_path / "job.yaml", folder, launcher)
    assert result.exit_code == 1
    assert f"{folder} is in use by another `regroup run`" in result.output
    assert "--directory" in result.output
    assert not list((folder / "logs").iterdir())


def test_a_file_system_without_locks_lets_every_run_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def no_locks(_descriptor: int, operation: int) -> None:
        asked.append(operation)
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with locked(tmp_path), locked(tmp_path):
        assert not is_held(tmp_path)
    assert asked == 2 * [fcntl.LOCK_EX | fcntl.LOCK_NB]


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize(
    ("is_full", "why"),
    [
        (True, "No space left on device: make room"),
        (False, "Read-only file system: give this run a folder that can be written"),
    ],
)
def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(
    tmp_path: Path, is_full: bool, why: str
) -> None:
    with mounted(tmp_path / "disk", "64k") as disk:
        fill(disk / "hog") if is_full else remount(disk, "ro")
        with pytest.raises(FolderError) as refused, locked(disk / "job"):
            pass
        if not is_full:
            remount(disk, "rw")
    assert str(refused.value).startswith(str(disk / "job"))
    assert why in str(refused.value)


def test_the_command_says_that_a_folder_lies_below_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "job.yaml" / "run"
    result = run_script_job(tmp_path / "job.yaml", folder)
    assert result.exit_code == 1
    assert f"Error: {folder}" in result.output
    assert "Not a directory: give this run a folder that can be written" in result.output
