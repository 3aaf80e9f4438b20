"""Sending spans, to collectors of all kinds."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from regroup_trainer.system import span_exporter
from regroup_trainer.system.otlp_settings import OtlpSettings
from regroup_trainer.system.span_exporter import MOST_WAITING, SpanExporter
from regroup_trainer.system.spans import Span, trace_id
from tests.support.otlp_receiver import OtlpReceiver, values_of
from tests.support.waiting import wait_until

SECRET = "s3cret"
_made: list[SpanExporter] = []
"""Those of the present test, whose threads end with it."""


def make_exporter(url: str, seconds: float = 10.0) -> SpanExporter:
    """An exporter with a secret header."""
    headers = {"authorization": f"Bearer {SECRET}"}
    settings = OtlpSettings(f"{url}/v1/traces", "regroup-test", headers, seconds)
    exporter = SpanExporter(settings)
    _made.append(exporter)
    return exporter


def make_spans(count: int = 1, first: int = 0) -> list[Span]:
    """So many spans, numbered by their names."""
    trace = trace_id("uid-1", "1.1")
    return [Span(trace, str(n), str(n), 1.0, 2.0) for n in range(first, first + count)]


@pytest.fixture(autouse=True)
def _retries_soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(span_exporter, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(span_exporter, "LONGEST_RETRY_SECONDS", 0.2)
    yield
    while _made:
        _made.pop().close(0)


def test_spans_arrive_with_headers_and_the_name_of_the_program() -> None:
    with OtlpReceiver() as receiver:
        exporter = make_exporter(receiver.url)
        exporter.offer(make_spans(3))
        exporter.close(60)
        assert [span.name for span in receiver.spans] == ["0", "1", "2"]
        assert receiver.paths == ["/v1/traces"]
        (headers,) = receiver.headers
        assert headers["Content-Type"] == "application/json"
        assert headers["authorization"] == f"Bearer {SECRET}"
        (resource,) = receiver.requests[0].resource_spans
        assert values_of(resource.resource.attributes) == {"service.name": "regroup-test"}


@pytest.mark.parametrize("status", [429, 503])
def test_what_a_collector_cannot_take_for_now_is_sent_again(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with OtlpReceiver(status) as receiver, caplog.at_level(logging.WARNING):
        exporter = make_exporter(receiver.url)
        exporter.offer(make_spans())
        wait_until("three tries", lambda: len(receiver.paths) >= 3, 60)
        receiver.status = 200
        wait_until("the span", lambda: receiver.spans, 60)
        exporter.offer(make_spans(first=7))
        wait_until("the next span", lambda: len(receiver.spans) == 2, 60)
    assert [span.name for span in receiver.spans] == ["0", "7"]
    assert len(caplog.records) == 1, "once in a row"
    assert f"status {status}" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("status", [301, 400, 500])
def test_what_a_collector_refuses_is_not_sent_again(status: int) -> None:
    with OtlpReceiver(status) as receiver:
        exporter = make_exporter(receiver.url)
        exporter.offer(make_spans())
        wait_until("a refusal", lambda: receiver.paths, 60)
        receiver.status = 200
        exporter.offer(make_spans(first=1))
        wait_until("the next span", lambda: receiver.spans, 60)
        assert [span.name for span in receiver.spans] == ["1"]


@contextmanager
def unresponsive() -> Iterator[str]:
    """A collector that takes connections, and never answers."""
    with OtlpReceiver(hangs=True) as receiver:
        yield receiver.url


@contextmanager
def full() -> Iterator[str]:
    """One whose system answers no more connections."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def away() -> Iterator[str]:
    """None at all."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@contextmanager
def failing() -> Iterator[str]:
    """One with an internal error."""
    with OtlpReceiver(500) as receiver:
        yield receiver.url


@contextmanager
def dripping() -> Iterator[str]:
    """One whose answer comes byte by byte, for ever."""
    ends = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=_drip, args=(listening, ends), daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        ends.set()
        socket.create_connection(listening.getsockname()).close()
        serving.join()


def _drip(listening: socket.socket, ends: threading.Event) -> None:
    while not ends.is_set():
        connection, _ = listening.accept()
        with connection:
            try:
                connection.sendall(b"HTTP/1.1 200 ")
                while not ends.wait(0.02):
                    connection.sendall(b"x")
            except OSError:
                continue


@pytest.mark.parametrize("collector", [unresponsive, full, away, failing, dripping])
def test_no_collector_makes_anybody_wait_or_fills_the_memory(
    collector: Callable[[], AbstractContextManager[str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    post, threads = SpanExporter._post, set()

    def noted(exporter: SpanExporter, body: bytes) -> int:
        threads.add(threading.current_thread())
        return post(exporter, body)

    monkeypatch.setattr(SpanExporter, "_post", noted)
    with collector() as url, caplog.at_level(logging.WARNING):
        exporter = make_exporter(url, seconds=0.3)
        for number in range(20):
            exporter.offer(make_spans(100, first=100 * number))
        wait_until("a failure", lambda: exporter._failures > 0, 60)
        assert len(exporter._waiting) <= MOST_WAITING
        wait_until("more failures", lambda: exporter._failures > 2, 60)
        exporter.offer(make_spans(first=9999))
        assert len(exporter._waiting) <= MOST_WAITING
        assert exporter._waiting[-1].name == "9999", "the oldest are dropped"
        assert threading.active_count() < 20
    assert threading.current_thread() not in threads, "whoever offers spans waits for no network"
    assert "cannot send spans" in caplog.text
    assert SECRET not in caplog.text


def test_the_end_of_a_process_waits_a_moment_for_a_slow_collector_and_not_for_a_dead_one() -> None:
    with unresponsive() as url:
        exporter = make_exporter(url)
        exporter.offer(make_spans())
        start = time.monotonic()
        exporter.close(0.3)
        assert time.monotonic() - start >= 0.3
        assert exporter._is_closed
    with away() as url:
        exporter = make_exporter(url)
        exporter.offer(make_spans())
        wait_until("a failure", lambda: exporter._failures > 0, 60)
        exporter.close(600)
        assert exporter._thread is not None
        exporter._thread.join(60)
        assert not exporter._thread.is_alive(), "its pause has ended, too"


def test_a_header_that_cannot_be_sent_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with OtlpReceiver() as receiver, caplog.at_level(logging.WARNING):
        settings = OtlpSettings(receiver.url, "regroup-test", {"a": f"{SECRET}\n"})
        exporter = SpanExporter(settings)
        _made.append(exporter)
        exporter.offer(make_spans())
        wait_until("a failure", lambda: exporter._failures > 0, 60)
    assert "ValueError" in caplog.text
    assert SECRET not in caplog.text
