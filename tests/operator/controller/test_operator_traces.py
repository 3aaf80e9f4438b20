"""What the operator did for a recovery, in the trace of that recovery."""

from __future__ import annotations

import logging

import pytest

from regroup_operator.controller.operator_traces import (
    MOST_PENDING,
    STALE_SECONDS,
    OperatorTraces,
)
from regroup_trainer.coordinator.generation_trace import trace_of
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import Outcome
from regroup_trainer.system.spans import ROOT, export_request, span_id, trace_id
from tests.support import traces_page
from tests.support.operator_simulation import make_spec, make_torchrun_spec
from tests.support.otlp_receiver import parse_request, paths_of, spans_in
from tests.support.traced_operator import UID, TracedJob, training


def test_a_replaced_worker_is_part_of_the_recovery_that_its_coordinator_traces() -> None:
    job = training()
    assert not job.spans, "a first start replaces nobody"
    lost_at = job.now.timestamp()
    job.fail(job.workers()[1])
    job.run_rounds(4)
    assert not job.spans, "which recovery it is for is not known yet"
    job.recover("1.2")
    trace = trace_of(UID, GenerationNumber(1, 2))
    assert {(span.trace, span.parent) for span in job.spans} == {(trace, span_id(trace, ROOT))}
    by_name = {span.name: span for span in job.spans}
    assert by_name.keys() == {"replace worker", "start worker"}
    made, started = by_name["replace worker"], by_name["start worker"]
    assert made.start == pytest.approx(lost_at, abs=2.1)
    assert made.start < made.end == started.start < started.end
    assert made.attributes == {
        "regroup.namespace": "default",
        "regroup.trainingjob": "gpt",
        "regroup.pod": job.workers()[1].name,
    }
    job.run_rounds(4)
    job.recover("1.3")
    assert len(job.spans) == 2, "each is sent once"


def test_a_coordinator_that_is_lost_with_a_worker_is_part_of_the_same_recovery() -> None:
    job = training()
    job.fail(job.workers()[1])
    job.lose_coordinator()
    job.run_rounds(12)
    job.recover("2.1")
    names = {span.name for span in job.spans}
    assert names == traces_page.spans_made_by("operator")
    used = {key for span in job.spans for key in span.attributes}
    assert used <= traces_page.attributes()
    assert {span.trace for span in job.spans} == {trace_id(UID, "2.1")}


def test_a_coordinator_whose_workers_train_on_has_a_trace_of_its_own() -> None:
    job = training()
    job.adopted = GenerationNumber(1, 1)
    lost_at = job.now.timestamp()
    job.lose_coordinator()
    job.run_rounds(12)
    assert {span.trace for span in job.spans} == {trace_id(UID, "2.0")}
    shown = spans_in(parse_request(export_request({}, job.spans)))
    assert paths_of(shown) == {
        "succession",
        "succession/replace coordinator",
        "succession/start coordinator",
    }
    root = next(span for span in job.spans if span.path == ROOT)
    assert root.start == pytest.approx(lost_at, abs=2.1)
    assert root.attributes["regroup.term"] == 2


def test_a_replacement_that_no_recovery_was_for_is_dropped() -> None:
    job = training()
    job.fail(job.workers()[2])
    job.run_rounds(4)
    job.tick(STALE_SECONDS)
    job.round()
    job.recover("1.2")
    assert not job.spans


def test_what_is_wanted_is_no_loss() -> None:
    job = training()
    job.spec = make_spec(replicas=2)
    job.run_rounds(4)
    job.spec = make_spec(replicas=3)
    job.run_rounds(4)
    job.recover("1.3")
    assert not job.spans
    job.spec = make_spec(suspend=True)
    job.outcome = Outcome(result="suspended", message="suspended")
    job.run_rounds(6)
    assert not job.workers()
    job.spec = make_spec()
    job.run_rounds(6)
    assert len(job.workers()) == 3
    job.recover("2.1")
    assert not job.spans


def test_recoveries_that_a_new_operator_finds_are_not_its_own() -> None:
    job = training()
    job.recover("1.2")
    job.fail(job.workers()[1])
    job.traces = OperatorTraces(job.spans.extend)
    job.run_rounds(4)
    assert not job.spans


def test_a_job_under_torchrun_has_no_traces() -> None:
    job = TracedJob(make_torchrun_spec())
    job.run_rounds(4)
    job.fail(job.workers()[1])
    job.run_rounds(4)
    job.recover("2.0")
    assert not job.spans
    assert not job.traces._jobs


def test_a_worker_that_fails_for_ever_fills_no_memory() -> None:
    job = training()
    for _ in range(3 * MOST_PENDING):
        if workers := job.workers():
            job.fail(workers[0])
        job.run_rounds(1)
        job.tick(400)  # the back-off is over
    (trace,) = job.traces._jobs.values()
    assert len(trace._pending) <= MOST_PENDING
    assert len(trace._starting) <= 3


def test_a_fault_in_here_costs_spans_alone(caplog: pytest.LogCaptureFixture) -> None:
    job = training()

    def fails(_spans: object) -> None:
        raise ZeroDivisionError

    job.traces._offer = fails
    job.fail(job.workers()[1])
    with caplog.at_level(logging.ERROR):
        job.run_rounds(4)
        job.recover("1.2")
    assert "cannot export spans" in caplog.text
    assert len(job.workers()) == 3
