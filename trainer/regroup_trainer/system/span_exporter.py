"""Sends spans to a collector: OTLP over HTTP, as JSON, from a thread of its own.

Whoever has spans only hands them over. A collector that is away, slow or hostile costs that thread
its time, and the spans: at most MOST_WAITING wait. The name of a host is looked up there as well,
which may take longer than any deadline; an event loop would wait for that at its end.
"""

from __future__ import annotations

import http
import logging
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from regroup_trainer.system.backoff import retry_seconds
from regroup_trainer.system.otlp_settings import OtlpSettings
from regroup_trainer.system.spans import MOST_SPANS, Span, export_request

MOST_WAITING = 512
"""Spans. Beyond them the oldest are dropped."""
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 5.0, 300.0
"""Pause after a request that failed, doubled after each in a row."""
CLOSE_SECONDS = 0.3
"""How long the end of a process waits for its last spans. An evicted coordinator has no successor
before.
"""
_PASSING = frozenset({429, 502, 503, 504})
"""Answers after which OTLP lets a request be sent again."""

log = logging.getLogger(__name__)


class SpanExporter:
    """Sends spans as `settings` say. Its methods may be called from any thread."""

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._resource = {**settings.attributes, "service.name": settings.service}
        self._waiting: deque[Span] = deque(maxlen=MOST_WAITING)
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._sends = False
        self._is_closed = False
        self._failures = 0
        """Requests in a row that failed."""

    def offer(self, spans: Iterable[Span]) -> None:
        """Have these sent soon. It returns at once."""
        with self._news:
            self._waiting.extend(spans)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
                self._thread.start()
            self._news.notify_all()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until all is sent, but not for a collector that has just failed. What is left is not
        sent.
        """
        with self._news:
            self._news.wait_for(self._is_idle, seconds)
            self._is_closed = True
            self._news.notify_all()

    def _is_idle(self) -> bool:
        return not self._sends and (not self._waiting or self._failures > 0)

    def _run(self) -> None:
        while spans := self._next():
            self._send(spans)
            if self._failures:
                pause = retry_seconds(self._failures, RETRY_SECONDS, LONGEST_RETRY_SECONDS)
                with self._news:
                    self._news.wait_for(lambda: self._is_closed, pause)

    def _next(self) -> list[Span]:
        """The spans to send next; none: it is closed."""
        with self._news:
            self._news.wait_for(lambda: self._is_closed or bool(self._waiting))
            if self._is_closed:
                return []
            self._sends = True
            return [self._waiting.popleft() for _ in range(min(MOST_SPANS, len(self._waiting)))]

    def _send(self, spans: list[Span]) -> None:
        problem, passes = "", False
        try:
            status = self._post(export_request(self._resource, spans))
            if not http.HTTPStatus.OK <= status < http.HTTPStatus.MULTIPLE_CHOICES:
                problem, passes = f"it answers with status {status}", status in _PASSING
        except (OSError, HTTPException, ValueError) as error:
            problem, passes = _describe(error), True
        self._note(spans, problem, passes=passes)

    def _note(self, spans: list[Span], problem: str, *, passes: bool) -> None:
        """What became of these. Those that may be sent again are, unless newer ones need their
        place.
        """
        place = self._settings.place
        if problem and not self._failures:
            log.warning("cannot send spans to %s: %s (nothing else depends on it)", place, problem)
        with self._news:
            if passes:
                room = MOST_WAITING - len(self._waiting)
                self._waiting.extendleft(reversed(spans[-room:] if room else []))
            self._failures = self._failures + 1 if problem else 0
            self._sends = False
            self._news.notify_all()

    def _post(self, body: bytes) -> int:
        """The status of the answer; its body is not read. Raises OSError, HTTPException, and
        ValueError for headers that cannot be sent.
        """
        until = time.monotonic() + self._settings.seconds
        connection = self._connection()
        try:
            connection.connect()
            cut = threading.Timer(max(0.0, until - time.monotonic()), _cut, (connection.sock,))
            cut.daemon = True
            cut.start()
            try:
                status = self._exchange(connection, body)
            finally:
                cut.cancel()
            if time.monotonic() >= until:
                raise TimeoutError  # an answer that was cut may look whole
            return status
        finally:
            connection.close()

    def _exchange(self, connection: HTTPConnection, body: bytes) -> int:
        parts = urlsplit(self._settings.url)
        target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        headers = {**self._settings.headers, "Content-Type": "application/json"}
        connection.request("POST", target, body, headers)
        return connection.getresponse().status

    def _connection(self) -> HTTPConnection:
        parts, seconds = urlsplit(self._settings.url), self._settings.seconds
        host = parts.hostname or ""
        if parts.scheme == "http":
            return HTTPConnection(host, parts.port or 80, timeout=seconds)
        trusted = ssl.create_default_context(cafile=self._settings.certificate or None)
        return HTTPSConnection(host, parts.port or 443, timeout=seconds, context=trusted)


def _describe(error: Exception) -> str:
    """Without what the collector wrote, and without headers, which errors about them quote."""
    if not isinstance(error, OSError) or not error.strerror:
        return type(error).__name__
    return f"{error.strerror}{f': {error.filename}' if error.filename else ''}"


def _cut(connection: socket.socket) -> None:
    """End a request whose time is over: each byte of an answer begins a time-out anew."""
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return
