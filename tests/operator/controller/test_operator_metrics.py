"""The series that a scrape gets about each job."""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
import threading
import urllib.request
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from regroup_operator.api.status import RecoveryStatus, TrainingJobStatus
from regroup_operator.controller.handlers import Operator
from regroup_operator.controller.operator_metrics import (
    REQUEST_BYTES,
    SCRAPES_AT_ONCE,
    JobSeries,
    recovery_seconds,
    serve_metrics,
)
from regroup_trainer.protocol.job_status import Waiting
from regroup_trainer.protocol.waiting_reasons import WaitingReason
from tests.support.expositions import DEGRADED
from tests.support.operator_simulation import Simulation
from tests.support.rendering import KEYS, SETTINGS
from tests.support.waiting import wait_until

JOB = Simulation().job()


def samples(series: JobSeries, name: str) -> list[dict[str, str]]:
    """The labels of the samples of one series."""
    found = [sample for metric in series.collect() for sample in metric.samples]
    return [dict(sample.labels) for sample in found if sample.name == name]


def make_recovery(generation: str, down_seconds: float | None) -> RecoveryStatus:
    return RecoveryStatus(
        time="2026-01-01T00:00:00Z",
        cause="hang",
        restored_from="Peers",
        generation=generation,
        down_seconds=down_seconds,
    )


def count_of_recoveries() -> float:
    labels = {"namespace": "default", "trainingjob": "gpt", "cause": "hang"}
    return sum(
        sample.value
        for metric in recovery_seconds.collect()
        for sample in metric.samples
        if sample.name.endswith("_count") and labels.items() <= sample.labels.items()
    )


def test_the_reason_why_a_job_waits_is_a_series_until_it_trains() -> None:
    series = JobSeries()
    series.observe(JOB, JOB.status, Waiting.of(WaitingReason.Unschedulable, "no node fits"))
    assert samples(series, "trainingjob_waiting") == [
        {"namespace": "default", "trainingjob": "gpt", "reason": "Unschedulable"}
    ]
    series.observe(JOB, JOB.status, None)
    assert samples(series, "trainingjob_waiting") == []


def test_the_reason_why_a_job_is_degraded_is_a_series_until_it_is_whole() -> None:
    series = JobSeries()
    for status in ("True", "False"):
        condition = DEGRADED.model_copy(update={"status": status})
        series.observe(JOB, TrainingJobStatus(conditions=(condition,)), None)
        assert samples(series, "trainingjob_degraded") == [
            {"namespace": "default", "trainingjob": "gpt", "reason": "NoProgress"}
        ] * (status == "True")


def test_the_series_of_a_job_keep_no_spec() -> None:
    """Whoever may create jobs can make many large ones."""
    series, job = JobSeries(), Simulation().job()
    spec = weakref.ref(job.spec)
    series.observe(job, job.status, None)
    assert "desired" in {labels["state"] for labels in samples(series, "trainingjob_workers")}
    del job
    gc.collect()
    assert spec() is None


def test_a_job_that_is_gone_has_no_series() -> None:
    series = JobSeries()
    series.observe(JOB, JOB.status, None)
    assert samples(series, "trainingjob_status_phase")
    series.forget(JOB.key)
    assert samples(series, "trainingjob_status_phase") == []


@pytest.fixture
def _quick_turns() -> Iterator[None]:
    """Threads take turns within a scrape."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("_quick_turns")
def test_jobs_that_come_and_go_beside_a_scrape_do_not_break_it() -> None:
    series, begun, ended = JobSeries(), threading.Event(), threading.Event()
    jobs = [replace(JOB, name=f"gpt{number}") for number in range(100)]

    def come_and_go() -> None:
        while not ended.is_set():
            for job in jobs:
                series.observe(job, job.status, None)
                series.fail(job.key)
            begun.set()
            for job in jobs:
                series.forget(job.key)

    changes = threading.Thread(target=come_and_go)
    changes.start()
    try:
        assert begun.wait(20)
        for _ in range(50):
            list(series.collect())
    finally:
        ended.set()
        changes.join()


def test_the_recoveries_of_a_job_that_is_gone_leave_no_series() -> None:
    series = JobSeries()
    series.observe(JOB, JOB.status, None)
    recovered = TrainingJobStatus(recoveries=(make_recovery("1.2", 1.0),))
    series.observe(JOB, recovered, None)
    assert count_of_recoveries() > 0
    series.forget(JOB.key)
    assert count_of_recoveries() == 0


def test_each_recovery_is_observed_once_when_it_is_complete() -> None:
    series, before = JobSeries(), count_of_recoveries()

    def observe(*recoveries: RecoveryStatus) -> float:
        series.observe(JOB, TrainingJobStatus(recoveries=recoveries), None)
        return count_of_recoveries() - before

    assert observe(make_recovery("1.2", None)) == 0
    assert observe(make_recovery("1.2", 3.5)) == 1
    assert observe(make_recovery("1.2", 3.5)) == 1
    assert observe(make_recovery("1.2", 3.5), make_recovery("1.3", 0.5)) == 2


def of_queue(name: str) -> float:
    """What a scrape shows of the operator's queue."""
    return REGISTRY.get_sample_value(f"workqueue_{name}", {"name": "trainingjob"}) or 0.0


async def test_keys_count_as_they_are_added_and_wait_until_they_are_taken() -> None:
    queue, before = Operator(SETTINGS, KEYS).queue, of_queue("adds_total")
    for name in ("a", "b", "b"):
        queue.add(("team", name))
    assert (of_queue("depth"), of_queue("adds_total") - before) == (2, 2)
    key, _ = await queue.take()
    queue.add(key)
    assert of_queue("depth") == 1
    queue.done(key)
    assert (of_queue("depth"), of_queue("adds_total") - before) == (2, 3)


@pytest.fixture
def port() -> Iterator[int]:
    """Where this process serves its metrics."""
    server = serve_metrics(0, "127.0.0.1")
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_idle_connections_cost_few_threads_and_keep_no_scrape_out(port: int) -> None:
    threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        for _ in range(10 * SCRAPES_AT_ONCE):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            assert b"workqueue_depth" in answer.read()

        def few() -> bool:
            return threading.active_count() <= threads + SCRAPES_AT_ONCE

        wait_until("few threads", few)
    wait_until("none", lambda: threading.active_count() <= threads)


def test_headers_without_end_are_not_kept(port: int) -> None:
    """http.server takes a hundred of them, of 64 KiB each: sixteen such requests took 640 MiB."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\nX: " + b"x" * REQUEST_BYTES)
        assert connection.recv(12) == b"HTTP/1.0 200"


def test_a_request_that_comes_byte_by_byte_keeps_no_scrape_out(port: int) -> None:
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(SCRAPES_AT_ONCE)]
    for byte in b"GET /":
        for connection in slow:
            connection.send(bytes([byte]))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert answer.status == 200
    slow[0].settimeout(10)
    with contextlib.suppress(ConnectionError):
        assert slow[0].recv(1) == b"", "the oldest made room"
    for connection in slow:
        connection.close()
