"""What `status` says, and its exit codes."""

from __future__ import annotations

from typing import get_args

import pytest

from regroup.kubernetes.job_summary import EXIT_CODES, exit_code, status_line, status_lines
from regroup_operator.api.status import Phase
from tests.support.cluster_objects import NOW, job_record, running_status, waiting_status


def test_every_phase_has_an_exit_code() -> None:
    assert set(EXIT_CODES) == set(get_args(Phase))


@pytest.mark.parametrize(
    ("phase", "code"), [("Running", 0), ("Succeeded", 0), ("Failed", 3), ("Pending", 5)]
)
def test_the_exit_code_follows_the_phase(phase: str, code: int) -> None:
    assert exit_code(job_record(running_status(phase=phase))) == code


def test_a_job_that_no_operator_has_seen_has_a_code_of_its_own() -> None:
    assert exit_code(job_record()) == 6


def test_the_status_of_a_job_that_trains() -> None:
    lines = status_lines(job_record(running_status()), NOW, 80, wide=True)
    text = "\n".join(lines)
    assert "Phase:       Running for 116m" in text
    assert "3 of 3 (elastic, 2 to 4) training: 3 ranks" in text
    assert "step 120 of 500 (24%), loss 3.2144" in text
    assert "95.8%, 2 restarts, 9 steps done again" in text
    assert "Ready       True     Training   116m" in text
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("unit", ["tokens", "samples"])
def test_the_rate_has_the_unit_that_the_job_counts(unit: str) -> None:
    progress = {"step": 120, f"{unit}PerSecond": 41000.0}
    lines = status_lines(job_record(running_status(progress=progress)), NOW, 80, wide=False)
    assert f"step 120, 41,000 {unit}/s" in "\n".join(lines)


def test_the_line_of_a_job_that_waits_says_why() -> None:
    job = job_record(waiting_status("Unschedulable", "pod gpt-w2-3 cannot be scheduled"))
    line = status_line(job, NOW)
    assert line == (
        "12:00:00  Pending, 0/3 workers, step 120/500: pod gpt-w2-3 cannot be scheduled"
    )
