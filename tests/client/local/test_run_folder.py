"""What is said of a folder that cannot hold a run, or of a file that cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from regroup.cli.command_line import main
from regroup.local.run_folder import explain
from tests.support.disks import mounted

FOLDER = Path("/runs/gpt")
JOB = """\
apiVersion: regroup.dev/v1alpha1
kind: TrainingJob
metadata: {{name: gpt}}
spec:
  launcher: {launcher}
  template: {{spec: {{containers: [{{name: trainer, command: [python, train.py]}}]}}}}
"""
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
    job = tmp_path / "job.yaml"
    job.write_text(JOB.format(launcher=launcher))
    with mounted(tmp_path / "disk", "64k") as disk:
        (disk / "run").mkdir()
        with pytest.raises(OSError, match="No space"):
            (disk / "hog").write_bytes(bytes(100_000))
        done = CliRunner().invoke(main, ["run", str(job), "--directory", str(disk / "run")])
    assert done.exit_code == 1
    assert f"{tmp_path}/disk/run" in done.output
    assert "No space left on device: make room, or give this run another folder" in done.output


@pytest.mark.parametrize("launcher", ["regroup", "torchrun"])
def test_a_folder_that_cannot_be_made_is_named_with_what_to_do(
    tmp_path: Path, launcher: str
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB.format(launcher=launcher))
    done = CliRunner().invoke(main, ["run", str(job), "--directory", "/proc/nowhere"])
    assert done.exit_code == 1
    assert "/proc/nowhere: No such file or directory: give this run a folder" in done.output
