"""Heartbeats, from a thread of their own, so that no work of the agent delays them.

The thread uses one kept-alive HTTP connection of the standard library: no event loop, and no lock
that another thread holds for long.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import threading
import time
from collections.abc import Callable
from urllib.parse import quote, urlsplit

RETRY_SECONDS = 1.0
"""The longest interval while heartbeats are not answered."""


class Heartbeat(threading.Thread):
    """POST /v1/importing/<index> every `seconds` until `is_warm` is set, and /v1/heartbeat/<member>
    from then on. The first one is sent at once. Failures are ignored: the coordinator notices.

    While none is answered they come once a second at least, so that `unheard_seconds` is of now.

    A heartbeat says how late this thread got its turn, in seconds: on an overloaded machine the
    next one may be later still.

    `on_unknown` is called in this thread when a coordinator does not know the member.
    """

    def __init__(
        self,
        url: str,
        token: str,
        member: str,
        index: int,
        seconds: float,
        on_unknown: Callable[[], object],
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.url = url
        """The coordinator's; it may be changed while the thread runs."""
        name = quote(member, safe="")
        self._cold_path = f"/v1/importing/{index}?member={name}"
        self._path = f"/v1/heartbeat/{name}"
        self.is_warm = False
        """Whether torch is imported."""
        self._headers = {"Authorization": f"Bearer {token}", "Content-Length": "0"}
        self.seconds = seconds
        """The interval; it may be changed while the thread runs."""
        self._on_unknown = on_unknown
        self._stopped = threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        self._connected_to = url
        self._unanswered_since: float | None = None
        """Monotonic time of the first heartbeat without an answer since the last answer."""

    def run(self) -> None:
        """Send heartbeats until `stop`."""
        due = time.monotonic()
        while not self._stopped.is_set():
            self._beat(max(0.0, time.monotonic() - due))
            pause = self.seconds if self.unheard_seconds() == 0 else self._retry_seconds()
            due = time.monotonic() + pause
            self._stopped.wait(pause)
        self._disconnect()

    def unheard_seconds(self) -> float:
        """Since the first heartbeat that was not answered; 0 while they are answered."""
        since = self._unanswered_since
        return 0.0 if since is None else time.monotonic() - since

    def stop(self) -> None:
        """End the thread after the current heartbeat."""
        self._stopped.set()

    def _retry_seconds(self) -> float:
        return min(self.seconds, RETRY_SECONDS)

    def _beat(self, delay: float) -> None:
        sent = time.monotonic()
        try:
            if self._connected_to != self.url:
                self._disconnect()
            if self._connection is None:
                self._connect(self.url)
            assert self._connection is not None
            path = f"{self._path}?delay={delay:.3f}" if self.is_warm else self._cold_path
            self._connection.request("POST", path, headers=self._headers)
            answer = self._connection.getresponse()
            answer.read()
            self._unanswered_since = None
            if answer.status == http.HTTPStatus.NOT_FOUND:
                self._on_unknown()
        except (OSError, http.client.HTTPException):
            self._disconnect()
            self._unanswered_since = self._unanswered_since or sent

    def _connect(self, url: str) -> None:
        """Look the name up each time: a new coordinator has another address under it."""
        parts, timeout = urlsplit(url), max(1.0, self.seconds)
        host, port = parts.hostname or "", parts.port or 80
        self._connection = http.client.HTTPConnection(host, port, timeout=timeout)
        self._connected_to = url

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None
