"""The drawing of `timeline`."""

from __future__ import annotations

from datetime import timedelta

import pytest

from regroup.kubernetes.timeline import bar, timeline, timeline_lines
from tests.support.cluster_objects import (
    NOW,
    at,
    condition,
    job_record,
    recovery,
    running_status,
)


def drawn(columns: int = 10, **status: object) -> str:
    job = job_record(running_status(startTime=at(100), **status))
    return bar(timeline(job, NOW), columns)


def test_a_recovery_is_where_its_time_is_and_as_long_as_it_took() -> None:
    assert drawn(recoveries=[recovery(2, 70, downSeconds=2)]) == "===x======"
    assert drawn(recoveries=[recovery(2, 70, downSeconds=25)]) == "===xxx===="


def test_a_job_that_waits_now_waits_since_its_condition_says_so() -> None:
    ready = condition("Ready", "False", "Unschedulable", "no node", ago=40)
    assert drawn(phase="Pending", conditions=[ready], recoveries=[]) == "======...."


def test_a_job_that_never_trained_only_waits() -> None:
    assert drawn(phase="Pending", conditions=[], recoveries=[], progress={}) == "." * 10


def test_a_recovery_without_an_end_takes_one_column() -> None:
    assert drawn(recoveries=[recovery(2, 0, downSeconds=None)]) == "=========x"


@pytest.mark.parametrize("seconds", [1e300, -5])
def test_a_recovery_of_any_length_can_be_drawn(seconds: float) -> None:
    assert len(drawn(recoveries=[recovery(2, 70, downSeconds=seconds)])) == 10


def test_ten_recoveries_are_the_last_ones_and_the_drawing_begins_with_them() -> None:
    job = job_record(running_status(recoveries=[recovery(n, 600 - 10 * n) for n in range(10)]))
    found = timeline(job, NOW)
    assert found.is_cut
    assert found.start == NOW - timedelta(seconds=600)
    assert "the last 10 recoveries" in timeline_lines(job, found, 80)[0]


def test_wide_adds_pod_and_node_of_each_recovery() -> None:
    job = job_record(running_status(recoveries=[recovery(2, 70), recovery(3, 60, pod="", node="")]))
    plain, wide = (timeline_lines(job, timeline(job, NOW), 80, wide=w) for w in (False, True))
    assert "NODE" not in "".join(plain)
    header = next(n for n, line in enumerate(wide) if "POD" in line)
    assert wide[header].split()[-2:] == ["POD", "NODE"]
    assert wide[header + 1].split()[-2:] == ["gpt-w1-1", "n2"]
    assert wide[header + 3].split()[-2:] == ["-", "-"]


def test_recoveries_before_a_suspension_are_drawn_too() -> None:
    """startTime is that of the last resume."""
    found = timeline(job_record(running_status(startTime=at(10))), NOW)
    assert found.start == found.recoveries[0].time


def test_the_lines_fit_and_name_the_generations() -> None:
    job = job_record(running_status())
    lines = timeline_lines(job, timeline(job, NOW), 80)
    assert max(map(len, lines)) <= 80
    assert lines[4].strip() == "1.2"
    assert "2026-11-26 10:36:40   1.2   3 -> 2   infrastructure   2.3s   0      Peers" in lines


def test_a_job_that_has_ended_ends_there() -> None:
    status = running_status(phase="Succeeded", completionTime=at(3600))
    job = job_record(status)
    found = timeline(job, NOW)
    assert found.end == NOW - timedelta(seconds=3600)
    assert "until its end" in timeline_lines(job, found, 80)[0]
