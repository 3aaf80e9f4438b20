"""What the page gets of a job, and its bounds."""

from __future__ import annotations

import json
import math

import pytest

from regroup.kubernetes.event_record import EventRecord
from regroup.kubernetes.job_record import read_job
from regroup.local.checkpoint_list import SavedCheckpoint
from regroup.web_page.job_source import CheckpointView, JobView, LogTail, WorkerRow
from regroup.web_page.page_data import (
    checkpoint_rows,
    job_details,
    job_page,
    log_lines,
    series_columns,
)
from regroup_trainer.protocol.job_status import SeriesPoint
from tests.support.cluster_objects import (
    NOW,
    job_object,
    job_record,
    running_status,
    waiting_status,
)

JOBS = {f"team/job-{n:04}": job_record(running_status()) for n in range(1000)}


def test_a_thousand_jobs_come_in_pages() -> None:
    first, last = job_page(JOBS, 0, ""), job_page(JOBS, 900, "")
    assert (first["total"], len(first["jobs"]), len(last["jobs"])) == (1000, 100, 100)
    assert last["jobs"][-1]["id"] == "team/job-0999"
    assert job_page(JOBS, 5000, "")["jobs"] == []


def test_jobs_are_found_by_a_part_of_the_name_or_by_their_phase() -> None:
    jobs = {**JOBS, "team/bert": job_record(waiting_status("Unschedulable", "no node"))}
    assert [job["id"] for job in job_page(jobs, 0, "BERT")["jobs"]] == ["team/bert"]
    assert [job["id"] for job in job_page(jobs, 0, "pending")["jobs"]] == ["team/bert"]


def test_a_job_is_shown_with_its_time_line_and_workers() -> None:
    rows = [WorkerRow(n, f"gpt-w{n}-1", "n1", "Training", str(n), None) for n in range(1200)]
    event = EventRecord(NOW, "Warning", "WorkerLost", "TrainingJob", "gpt", "it is lost", 3)
    view = JobView(job_record(running_status()), rows, 5, [event], workers_note="no steps")
    shown = job_details("team/gpt", view, NOW)
    assert (shown["step"], shown["totalSteps"], shown["phase"]) == (120, 500, "Running")
    recoveries = shown["timeline"]["recoveries"]
    assert [one["generation"] for one in recoveries] == ["1.2", "1.3"]
    assert recoveries[0]["end"] - recoveries[0]["time"] == pytest.approx(2.3, abs=1e-3)
    assert (len(shown["workerRows"]), shown["workersLeftOut"]) == (1000, 205)
    assert shown["events"][0]["about"] == "TrainingJob gpt"
    assert shown["workersNote"] == "no steps"


def test_an_answer_does_not_change_with_the_clock_while_a_job_trains() -> None:
    """So that a page which asks again learns that it has the answer."""
    view = JobView(job_record(running_status()), (), 0, ())
    later = NOW.replace(hour=NOW.hour + 1)
    assert job_details("gpt", view, NOW) == job_details("gpt", view, later)


def test_what_keeps_a_job_from_training_is_a_problem() -> None:
    job = job_record(waiting_status("Unschedulable", "no node has a GPU"))
    shown = job_details("gpt", JobView(job, (), 0, ()), NOW)
    assert shown["problems"] == ["Unschedulable: no node has a GPU"]
    assert shown["timeline"]["waitsSince"] is not None


def test_numbers_that_json_does_not_have_become_null() -> None:
    points = [SeriesPoint(time=1.0, step=1, world_size=2, loss=None)]
    status = running_status()
    status["progress"]["loss"] = math.inf
    shown = job_details("gpt", JobView(read_job(job_object(status)), (), 0, ()), NOW)
    assert json.loads(json.dumps([shown, series_columns(points)], allow_nan=False))


def test_columns_of_a_series_are_in_the_order_of_time() -> None:
    points = [SeriesPoint(time=float(n), step=n, world_size=1, loss=0.5) for n in (3, 1, 2)]
    assert series_columns(points)["step"] == [1, 2, 3]


def test_lines_and_checkpoints_beyond_the_bounds_are_left_out_and_counted() -> None:
    shown = log_lines(LogTail([f"line {n}" for n in range(600)] + ["x" * 5000]))
    assert (len(shown["lines"]), shown["lines"][0]) == (500, "line 101")
    assert shown["lines"][-1] == "x" * 2000 + "... (3000 more characters)"
    saved = [SavedCheckpoint(step=n, path="p") for n in range(250)]
    rows = checkpoint_rows(CheckpointView(saved, "why " * 1000))
    assert (rows["leftOut"], rows["note"][-22:]) == (50, "(2976 more characters)")
