"""The rows of `top`: speeds by several looks at a job."""

from __future__ import annotations

from regroup.kubernetes.job_record import JobRecord
from regroup.kubernetes.top_table import Marks, recent_marks, steps_per_second, top_lines, top_rows
from tests.support.cluster_objects import NOW, at, job_record, running_status, waiting_status

KEY = ("team", "gpt")


def seen(step: int, ago: float, **fields: object) -> JobRecord:
    """A job that made this step so many seconds ago."""
    progress = {"step": step, "totalSteps": 500, "updatedTime": at(ago), **fields}
    return job_record(running_status(progress=progress))


def after(*looks: JobRecord) -> Marks:
    marks: Marks = {}
    for job in looks:
        marks = recent_marks([job], marks)
    return marks


def speed(*looks: JobRecord) -> float | None:
    return steps_per_second(looks[-1], after(*looks).get(KEY, ()))


def test_the_speed_is_that_between_two_looks() -> None:
    assert speed(seen(100, 30), seen(160, 10)) == 3.0


def test_the_speed_is_that_of_the_last_half_minute() -> None:
    """A job that makes one step a second becomes three times as fast a minute before the last."""
    slow = [seen(step, 160 - step) for step in range(0, 100, 5)]
    fast = [seen(100 + 3 * second, 60 - second) for second in range(0, 61, 5)]
    assert speed(*slow) == 1.0
    assert speed(*slow, *fast) == 3.0
    marks = after(*slow, *fast)[KEY]
    assert len(marks) == 7, "older ones are forgotten"


def test_statuses_that_are_written_rarely_give_a_speed_too() -> None:
    assert speed(seen(100, 600), seen(400, 300), seen(400, 300), seen(1000, 0)) == 2.0


def test_a_job_that_stands_still_has_the_speed_zero_soon() -> None:
    stands = [seen(100, ago) for ago in range(40, -1, -5)]
    assert speed(seen(50, 45), *stands) == 0.0


def test_a_script_that_reports_its_speed_is_believed() -> None:
    assert steps_per_second(seen(100, 30, stepsPerSecond=7.5), ()) == 7.5


def test_one_look_and_steps_done_again_are_no_speed() -> None:
    assert speed(seen(100, 30)) is None
    assert speed(seen(100, 30), seen(100, 30)) is None
    assert speed(seen(100, 30), seen(160, 20), seen(90, 10)) is None
    assert speed(seen(100, 30), seen(160, 20), seen(90, 10), seen(100, 5)) == 2.0


def test_a_status_that_is_older_than_the_last_mark_changes_nothing() -> None:
    assert speed(seen(100, 30), seen(160, 10), seen(130, 20)) == 3.0


def test_a_pause_of_the_training_begins_a_new_measurement() -> None:
    waiting = job_record(waiting_status("Unschedulable", "no node"))
    marks = after(seen(100, 30), waiting)
    assert marks == {}
    assert steps_per_second(waiting, after(seen(100, 30))[KEY]) is None


def test_the_table_fits_eighty_columns() -> None:
    jobs = [
        job_record(running_status()),
        job_record(waiting_status("Unschedulable", "no node")),
        job_record(),
    ]
    lines = top_lines(top_rows(jobs, {}, set()), NOW, with_namespace=False, wide=False)
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == [
        "gpt", "Running", "120/500", "-", "41,000", "3.214", "3", "2", "95.8%", "12s",
    ]  # fmt: skip


def test_wide_adds_samples_generation_and_the_time_left_at_this_speed() -> None:
    looks = seen(100, 30), seen(160, 10, samplesPerSecond=48.0)
    rows = top_rows(looks[1:], after(*looks), set())
    header, line = top_lines(rows, NOW, with_namespace=False, wide=True)
    assert header.split()[-3:] == ["SAMPLES/S", "GENERATION", "LEFT"]
    assert line.split()[-3:] == ["48", "1.3", "113s"]


def test_a_job_whose_metrics_were_read_is_live() -> None:
    rows = top_rows([job_record(running_status())], {}, {KEY})
    assert rows[0].live
    assert top_lines(rows, NOW, with_namespace=True, wide=False)[1].split()[-1] == "live"
