"""The traces of a job on this machine: real processes, a real death, a collector that judges."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from regroup.local.local_run import LocalRun
from regroup_trainer.protocol.job_status import Outcome, Recovery
from tests.support.local_job import (
    at_step,
    kill_worker_for_a_while,
    make_run,
    play,
    release_replacements,
    trains_with,
)
from tests.support.otel_collector import running_collector
from tests.support.otlp_receiver import (
    OtlpReceiver,
    paths_of,
    seconds_of,
    traces_of,
    values_of,
)

pytestmark = pytest.mark.slow
ENDLESS = 1_000_000
"""Steps of a run that is suspended in the end."""
PARTS = {"form", "restore", "restore/start ranks", "restore/join", "restore/load", "first step"}


def lose_a_worker(run: LocalRun) -> Outcome:
    """A run that loses worker 1, trains with two, gets another, and is suspended."""
    return play(
        run,
        [
            (at_step(20), lambda run: kill_worker_for_a_while(run, 1)),
            (trains_with(2), release_replacements),
            (trains_with(3), lambda run: run.suspend()),
        ],
    )


def trace_of_the_loss(spans: list[Span], run: LocalRun) -> tuple[Span, list[Span], Recovery]:
    """Its root, all its spans, and the loss; fails unless all traces of the run are there."""
    traces = traces_of(spans)
    roots = {
        number: next(s for s in spans if not s.parent_span_id) for number, spans in traces.items()
    }
    assert [root.name for root in roots.values()] == ["start", "recovery", "resize"]
    (loss,) = [one for one in run.recoveries.values() if one.cause == "infrastructure"]
    of_loss = traces[str(loss.generation)]
    assert paths_of(of_loss) == {"recovery"} | {
        f"recovery/{part}" for part in {"detect", "abort", *PARTS}
    }
    return roots[str(loss.generation)], of_loss, loss


def test_the_recovery_from_a_lost_worker_arrives_as_one_whole_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        run = make_run(tmp_path, ENDLESS)
        assert lose_a_worker(run).result == "suspended"
    root, spans, loss = trace_of_the_loss(receiver.spans, run)
    facts = values_of(root.attributes)
    assert facts["regroup.pod"] == loss.pod
    assert facts["regroup.restored_from"] == "Peers"
    assert facts["regroup.down_seconds"] == pytest.approx(loss.down_seconds)
    assert 0 < seconds_of(root) < 2 * (loss.down_seconds or 0) + 5
    load = next(span for span in spans if span.name == "load")
    assert seconds_of(load) > 0
    resources = {
        str(values_of(one.resource.attributes)["service.name"])
        for request in receiver.requests
        for one in request.resource_spans
    }
    assert resources == {"regroup-coordinator"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_opentelemetrys_own_collector_takes_the_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_collector(tmp_path) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        run = make_run(tmp_path, ENDLESS)
        assert lose_a_worker(run).result == "suspended"
    assert not collector.complaints()
    trace_of_the_loss(collector.spans, run)


def test_a_collector_that_never_answers_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OtlpReceiver(hangs=True) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        run = make_run(tmp_path, ENDLESS)
        assert lose_a_worker(run).result == "suspended"
        assert receiver.paths, "it was tried"
    (loss,) = [one for one in run.recoveries.values() if one.cause == "infrastructure"]
    assert (loss.lost_steps, loss.restored_from) == (0, "Peers")
