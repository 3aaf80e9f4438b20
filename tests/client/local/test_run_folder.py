"""What is reported of a folder that cannot hold a run, or of a file that cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from regroup.local.run_folder import explain
from tests.support.disks import fill, mounted
from tests.support.run_command import run_script_job

FOLDER = Path("/runs/gpt")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")


def os_error(number: int, *paths: str) -> OSError:
    return OSError(number, os.strerror(number), *paths)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            os_error(errno.ENOSPC),
            "/runs/gpt: No space left on device: make room, or give this run another folder",
        ),
        (
            os_error(errno.EACCES, "/runs/gpt/logs"),
            "/runs/gpt/logs: Permission denied: give this run a folder that can be written",
        ),
        (os_error(errno.EAGAIN), "Resource temporarily unavailable"),
    ],
)
def test_an_error_names_the_folder_and_what_to_do(error: OSError, message: str) -> None:
    assert message in explain(error, FOLDER)


@root_only
@pytest.mark.parametrize("launcher", ["regroup", "torchrun"])
def test_a_full_folder_is_named_with_what_to_do(tmp_path: Path, launcher: str) -> None:
    with mounted(tmp_path / "disk", "64k") as disk:
        (disk / "run").mkdir()
        fill(disk / "hog")
        done = run_script_job(tmp_path / "job.yaml", disk / "run", launcher)
    assert done.exit_code == 1
    assert f"{tmp_path}/disk/run" in done.output
    assert "No space left on device: make room, or give this run another folder" in done.output


@pytest.mark.parametrize("launcher", ["regroup", "torchrun"])
def test_a_folder_that_cannot_be_made_is_named_with_what_to_do(
    tmp_path: Path, launcher: str
) -> None:
    done = run_script_job(tmp_path / "job.yaml", Path("/proc/nowhere"), launcher)
    assert done.exit_code == 1
    assert "/proc/nowhere: No such file or directory: give this run a folder" in done.output
