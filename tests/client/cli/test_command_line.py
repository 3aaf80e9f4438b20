"""`regroup run` before anything is started: mistakes are reported, and nothing is made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from regroup.cli.command_line import main
from tests.support.specs import VALID_JOB
from tests.support.waiting import wait_until


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(VALID_JOB)
    return file


def run(job: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of `regroup run`, in a folder of its own."""
    result = CliRunner().invoke(
        main, ["run", str(job), "--directory", str(job.parent / "run"), *arguments]
    )
    assert not (job.parent / "run").exists()
    return result.exit_code, result.output


def test_a_misspelt_fault_is_reported(job: Path) -> None:
    code, output = run(job, "--kill", "worker=one@step=50")
    assert code == 2
    assert "worker=1@step=50, rank=0@step=50 or coordinator@step=50" in " ".join(output.split())


def test_a_verb_for_jobs_of_a_cluster_is_found_where_it_is() -> None:
    result = CliRunner().invoke(main, ["status", "gpt"])
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert "No such command 'status': `regroup trainingjob status` is for jobs of a cluster" in said
    assert "`regroup ui` shows the runs of this machine" in said
    assert "Did you mean one of: 'plan', 'run'" not in said
    assert "No such command 'nothing'" in CliRunner().invoke(main, ["nothing"]).output


def test_an_invalid_job_is_reported_with_its_line(job: Path) -> None:
    job.write_text(VALID_JOB.replace("steps: 500", "steps: -1"))
    code, output = run(job)
    assert code == 1
    assert "job.yaml:11: spec.trainer.training.steps" in output


def test_a_file_of_two_jobs_is_refused(job: Path) -> None:
    job.write_text(VALID_JOB + "---\n" + VALID_JOB)
    code, output = run(job)
    assert code == 1
    assert "holds 2 jobs; run takes one" in output


def test_what_the_terminal_cannot_show_ends_no_command(job: Path) -> None:
    job = job.rename(job.with_name("🏖.yaml"))  # gloo writes it where a peer is lost
    result = CliRunner(charset="latin-1").invoke(main, ["validate", str(job)])
    assert result.exit_code == 0
    assert "\\U0001f3d6.yaml: TrainingJob" in result.output


def test_no_worker_is_no_run(job: Path) -> None:
    assert run(job, "--workers", "0")[0] == 2


def test_the_command_does_not_load_torch() -> None:
    program = "import sys, regroup.cli.command_line; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_ctrl_c_during_the_imports_ends_the_command_without_a_traceback() -> None:
    program = """
import sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "regroup.cli.command_line":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from regroup.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_a_signal_during_the_imports_ends_the_command_without_a_traceback(tmp_path: Path) -> None:
    """At moments that the machine draws: some libraries are loaded, and others are not yet."""
    job = tmp_path / "job.yaml"
    os.mkfifo(job)  # who has imported all waits for whoever writes it
    program = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests may ignore it
from regroup.cli import main
main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, "validate", str(job)], stderr=subprocess.PIPE, text=True
    )
    maps = Path(f"/proc/{process.pid}/maps")
    wait_until("the imports", lambda: "pydantic_core" in maps.read_text(), every=0.001)
    process.send_signal(signal.SIGINT)
    _, written = process.communicate(timeout=60.0)
    assert process.returncode in (130, 1), written
    assert "Traceback" not in written
