"""The table of `top`: speeds by two looks at the status."""

from __future__ import annotations

from regroup.kubernetes.top_table import first_marks, steps_per_second, top_lines
from tests.support.cluster_objects import NOW, at, job_record, running_status, waiting_status

KEY = ("team", "gpt")


def progress(step: int, ago: float, **fields: object) -> dict[str, object]:
    return {"progress": {"step": step, "totalSteps": 500, "updatedTime": at(ago), **fields}}


def test_the_speed_is_that_since_the_first_look() -> None:
    first = first_marks([job_record(running_status(**progress(100, 30)))], {})
    later = job_record(running_status(**progress(160, 10)))
    assert first_marks([later], first) == first
    assert steps_per_second(later, first[KEY]) == 3.0


def test_a_script_that_reports_its_speed_is_believed() -> None:
    job = job_record(running_status(**progress(100, 30, stepsPerSecond=7.5)))
    assert steps_per_second(job, None) == 7.5


def test_one_look_and_steps_done_again_are_no_speed() -> None:
    job = job_record(running_status(**progress(100, 30)))
    first = first_marks([job], {})
    assert steps_per_second(job, first[KEY]) is None
    assert steps_per_second(job_record(running_status(**progress(90, 10))), first[KEY]) is None


def test_a_pause_of_the_training_begins_a_new_measurement() -> None:
    first = first_marks([job_record(running_status(**progress(100, 30)))], {})
    waiting = job_record(waiting_status("Unschedulable", "no node"))
    assert first_marks([waiting], first) == {}
    assert steps_per_second(waiting, first[KEY]) is None


def test_the_table_fits_eighty_columns() -> None:
    jobs = [
        job_record(running_status()),
        job_record(waiting_status("Unschedulable", "no node")),
        job_record(),
    ]
    lines = top_lines(jobs, {KEY: (60, NOW)}, set(), NOW, with_namespace=False)
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == [
        "gpt", "Running", "120/500", "-", "41,000", "3.214", "3", "2", "95.8%", "12s",
    ]  # fmt: skip


def test_a_job_whose_metrics_were_read_is_live() -> None:
    job = job_record(running_status())
    assert top_lines([job], {}, {KEY}, NOW, with_namespace=True)[1].split()[-1] == "live"
