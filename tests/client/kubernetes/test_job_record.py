"""Objects of any release, and of anybody, are read without an error."""

from __future__ import annotations

from typing import Any

import pytest

from regroup.kubernetes.job_record import read_job
from tests.support.cluster_objects import NOW, at, condition, job_object, job_record, running_status


def test_a_status_is_read_with_the_time_of_its_last_write() -> None:
    job = job_record(running_status())
    assert (job.phase, job.status.progress.step, job.bounds) == ("Running", 120, (2, 4))
    assert job.status_time is not None
    assert (NOW - job.status_time).total_seconds() == 12


def test_a_field_that_cannot_be_read_is_left_out_and_named() -> None:
    job = job_record(running_status(recoveries=[{"time": "yesterday"}], phase="Dreaming"))
    assert job.unreadable == ("phase", "recoveries")
    assert (job.phase, job.status.recoveries) == ("Unknown", ())
    assert job.status.progress.step == 120


@pytest.mark.parametrize(
    ("phase", "reason", "generation", "refusal"),
    [
        ("Pending", "InvalidSpec", 1, "spec.image: wrong"),
        ("Pending", "NotSupported", 1, "spec.image: wrong"),
        ("Pending", "ImageUnavailable", 1, ""),
        ("Running", "InvalidSpec", 1, ""),  # its pods go on
        ("Pending", "InvalidSpec", 0, ""),  # it is about a former spec
    ],
)
def test_a_job_that_never_gets_pods(phase: str, reason: str, generation: int, refusal: str) -> None:
    ready = condition("Ready", "False", reason, "spec.image: wrong")
    status = running_status(
        phase=phase,
        message="spec.image: wrong",
        conditions=[ready],
        observedGeneration=generation,
    )
    assert job_record(status).refusal == refusal


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"metadata": None, "spec": None, "status": None},
        {"metadata": {"managedFields": [None, {"time": 3}]}, "spec": [], "status": "fine"},
        {"spec": {"replicas": "three", "elasticPolicy": []}},
        {"metadata": {"creationTimestamp": "now"}},
    ],
)
def test_what_is_no_job_is_read_as_one_of_which_nothing_is_known(document: Any) -> None:
    job = read_job(document)
    assert (job.phase, job.replicas, job.created) == ("Unknown", 1, None)


def test_a_job_that_no_operator_has_seen() -> None:
    job = read_job(job_object())
    assert not job.has_status
    assert job.status_time is None
    assert job.spec_time == job.created
    assert at(7300) == job_object()["metadata"]["creationTimestamp"]
