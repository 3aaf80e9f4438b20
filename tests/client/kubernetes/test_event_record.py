"""Which events are about a job: names are used again once an object is gone."""

from __future__ import annotations

from typing import Any

import pytest

from regroup.kubernetes.event_record import belongs, read_event
from regroup.kubernetes.job_record import read_job
from tests.support.cluster_objects import event_object, job_object, recovery, running_status

DOCUMENT = job_object(running_status(recoveries=[recovery(2, 5000, pod="gpt-w1-1")]))
JOB = read_job({**DOCUMENT, "metadata": {**DOCUMENT["metadata"], "uid": "new"}})
PODS = {"gpt-w0-1": "pod-0"}


@pytest.mark.parametrize(
    ("kind", "name", "uid", "ago", "counts"),
    [
        ("TrainingJob", "gpt", "new", 60, True),
        ("TrainingJob", "gpt", "old", 60, False),
        ("TrainingJob", "gpt", "", 60, True),
        ("TrainingJob", "gpt2", "new", 60, False),
        ("Pod", "gpt-w0-1", "pod-0", 60, True),
        ("Pod", "gpt-w0-1", "former", 60, False),
        ("Pod", "gpt-w1-1", "gone", 60, True),
        ("Pod", "gpt-w1-1", "former", 8000, False),
        ("Pod", "gpt-w7-1", "other", 60, False),
        ("Service", "gpt", "new", 60, False),
    ],
)
def test_an_event_belongs_to_the_object_and_not_to_its_name(
    kind: str, name: str, uid: str, ago: float, counts: bool
) -> None:
    about: dict[str, Any] = {"kind": kind, "name": name, "uid": uid}
    event = read_event(event_object("Killing", "x", ago=ago, involvedObject=about))
    assert belongs(event, JOB, PODS) is counts


def test_without_pods_only_the_job_s_own_count() -> None:
    own = read_event(event_object("Failed", "x"))
    pod = read_event(event_object("Failed", "x", kind="Pod", name="gpt-w0-1"))
    assert [belongs(event, JOB) for event in (own, pod)] == [True, False]
