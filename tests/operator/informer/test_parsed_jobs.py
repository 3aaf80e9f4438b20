"""Jobs as they were read: in one state each, and within a bound."""

from __future__ import annotations

import gc
import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest

from regroup_operator.informer.parsed_jobs import ParsedJobs
from regroup_operator.observe.kubernetes_objects import read_identity, read_job
from tests.support.operator_simulation import make_spec


def document(name: str, version: int = 1) -> dict[str, Any]:
    """A TrainingJob of the API server."""
    metadata = {"namespace": "a", "name": name, "uid": name, "resourceVersion": str(version)}
    return {"metadata": {**metadata, "generation": 1}, "spec": make_spec()}


def note(jobs: ParsedJobs, found: dict[str, Any]) -> None:
    """Read and remember it."""
    jobs.note(read_identity(found), read_job(found, datetime.now(UTC), 64), found)


def test_a_job_is_remembered_in_the_state_in_which_it_was_read() -> None:
    jobs = ParsedJobs()
    note(jobs, document("gpt"))
    job = jobs.get(("a", "gpt"), read_identity(document("gpt")))
    assert job is not None
    assert job.name == "gpt"
    assert jobs.get(("a", "gpt"), read_identity(document("gpt", version=2))) is None
    jobs.forget(("a", "gpt"))
    assert jobs.get(("a", "gpt"), read_identity(document("gpt"))) is None
    assert jobs.size == 0


def test_what_was_asked_for_last_stays_where_many_are_too_large_together() -> None:
    note(one := ParsedJobs(), document("gpt0"))
    jobs = ParsedJobs(most_bytes=3 * one.size)
    for number in range(3):
        note(jobs, document(f"gpt{number}"))
    jobs.get(("a", "gpt0"), read_identity(document("gpt0")))
    note(jobs, document("gpt3"))
    known = [
        number
        for number in range(4)
        if jobs.get(("a", f"gpt{number}"), read_identity(document(f"gpt{number}")))
    ]
    assert known == [0, 2, 3]
    assert jobs.size <= 3 * one.size


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        (make_spec(), {}),
        ({"replicas": 1, "x": 1}, {}),
        (make_spec(), {"handledPods": [f"{n:036d}" for n in range(1024)]}),
        (make_spec(), {"nodeFailures": {f"node{n}": n for n in range(256)}}),
    ],
    ids=["ordinary", "invalid", "many pods", "many nodes"],
)
def test_the_memory_that_is_counted_is_about_that_which_jobs_take(
    spec: dict[str, Any], status: dict[str, Any]
) -> None:
    jobs, count = ParsedJobs(), 50
    found = [{**document(f"gpt{n}"), "spec": spec, "status": status} for n in range(count)]
    texts = [json.dumps(each) for each in found]
    note(jobs, json.loads(texts[0]))
    tracemalloc.start()
    for text in texts[1:]:
        note(jobs, json.loads(text))
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.6 * jobs.size < taken < 1.5 * jobs.size


def test_one_above_the_bound_is_not_remembered() -> None:
    jobs = ParsedJobs(most_bytes=10)
    note(jobs, document("gpt"))
    assert jobs.size == 0
