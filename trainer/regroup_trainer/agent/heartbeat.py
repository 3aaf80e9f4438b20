"""Heartbeats, from a thread of their own, so that no work of the agent delays them.

The thread keeps one connection, by means of the standard library: no event loop, and no lock that
another thread holds for long. Heartbeats are frames of 16 bytes (`system/heartbeat_line.py`), or
requests where the other end takes no frames.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from urllib.parse import quote, urlsplit

from regroup_trainer.system.backoff import Patience, turn_seconds
from regroup_trainer.system.heartbeat_line import (
    HEADERS,
    Beat,
    HeartbeatSender,
    Kind,
    keep_alive,
)

RETRY_SECONDS = 1.0
"""The longest interval while heartbeats are not answered."""
ANSWER_SECONDS, LONGEST_ANSWER_SECONDS = 1.0, 2.0
"""Least time between two frames that want an answer: in a usual generation, and in a large one."""
ANSWERS_A_SECOND = 512
"""So many a coordinator gives with little of a core: each costs it more than the frame does."""
STALL_SECONDS = 4.0
"""A connection without an answer is kept for so long. A coordinator that stands still for a few
seconds would have to make all of them anew at once.
"""
AGAIN_SECONDS = 0.1
"""From the end of a connection that was in order to the next one."""


class Heartbeat(threading.Thread):
    """A heartbeat every `seconds`, which says that the worker imports torch until `is_warm` is set.
    The first one is sent at once. Failures are ignored: the coordinator notices.

    While none is answered they come once a second at least, so that `unanswered_seconds` is of now.

    A heartbeat says how late this thread got its turn, in seconds: on an overloaded machine the
    next one may be later still.

    `on_lost` is called in this thread when a coordinator does not know the member, with the
    monotonic time of the heartbeat that it answered; or when it has not answered for so long that
    the connection is given up, with the present time.
    """

    def __init__(
        self,
        url: str,
        token: str,
        member: str,
        index: int,
        seconds: float,
        on_lost: Callable[[float], object],
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._url = self._connected_to = url
        name = quote(member, safe="")
        self._frames_path = f"/v1/heartbeats/{index}?member={name}"
        self._cold_path = f"/v1/importing/{index}?member={name}"
        self._path = f"/v1/heartbeat/{name}"
        self.is_warm = False
        """Whether torch is imported."""
        self._headers = {"Authorization": f"Bearer {token}"}
        self.seconds = seconds
        """The interval; it may be changed while the thread runs."""
        self._ask_seconds = ANSWER_SECONDS
        self._on_lost = on_lost
        self._stopped = threading.Event()
        self._wakes: socket.socket | None = None
        """What is sent here ends the pause between two heartbeats."""
        self._connection: http.client.HTTPConnection | None = None
        self._sender: HeartbeatSender | None = None
        """None while heartbeats are requests."""
        self._connected_at = 0.0
        self._asked_at = 0.0
        """Monotonic time of the last request, or frame that wanted an answer."""
        self._awaits_answer = False
        self._patience = Patience()
        self._unanswered_since: float | None = None
        """Monotonic time of the first heartbeat without an answer since the last answer."""

    @property
    def url(self) -> str:
        """The coordinator's; it may be changed while the thread runs."""
        return self._url

    @url.setter
    def url(self, url: str) -> None:
        moved, self._url = url != self._url, url
        if moved:
            self._wake()

    def run(self) -> None:
        """Send heartbeats until `stop`."""
        woken, self._wakes = socket.socketpair()
        due = time.monotonic()
        while not self._stopped.is_set():
            self._beat(max(0.0, time.monotonic() - due))
            pause = self.seconds if self.unanswered_seconds() == 0 else self._retry_seconds()
            due = self._await(time.monotonic() + pause, woken)
        self._disconnect()
        woken.close()
        self._wakes.close()

    def unanswered_seconds(self) -> float:
        """Since the first heartbeat that was not answered; 0 while they are answered."""
        now, since = time.monotonic(), self._unanswered_since
        if since is None and self._awaits_answer and now - self._asked_at >= self._answer_seconds:
            since = self._asked_at
        return 0.0 if since is None else now - since

    def begin(self, agents: int) -> None:
        """A generation of so many agents begins: the more, the fewer answers each wants."""
        least, longest = ANSWER_SECONDS, LONGEST_ANSWER_SECONDS
        self._ask_seconds = turn_seconds(agents, ANSWERS_A_SECOND, least, longest)

    def stop(self) -> None:
        """End the thread after the current heartbeat."""
        self._stopped.set()
        self._wake()

    def _wake(self) -> None:
        if self._wakes is not None:
            with contextlib.suppress(OSError):  # the thread has ended
                self._wakes.send(b".")

    def _retry_seconds(self) -> float:
        return min(self.seconds, RETRY_SECONDS)

    @property
    def _answer_seconds(self) -> float:
        """After which an answer is missed. A busy coordinator may get longer than that before the
        connection is given up.
        """
        return max(1.0, self.seconds)

    def _beat(self, delay: float) -> None:
        sent = time.monotonic()
        try:
            self._require_answer(sent)
            if self._connected_to != self._url:
                self._disconnect()
            if self._connection is None:
                self._connect(self._url)
            if self._sender is not None:
                self._send_frame(self._sender, delay, sent)
            else:
                self._request(delay)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError) and self._connection is not None:
                self._patience.note(late=True)
            since = self._asked_at if self._awaits_answer else sent
            self._unanswered_since = self._unanswered_since or since
            self._disconnect()

    def _connect(self, url: str) -> None:
        """Look the name up each time: a new coordinator has another address under it."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
        connection = http.client.HTTPConnection(host, port, timeout=self._answer_seconds)
        self._connected_to = url
        connection.connect()
        self._connection = connection
        connection.sock.settimeout(self._answer_seconds * self._patience.factor)
        answer = self._exchange(connection, "GET", self._frames_path, HEADERS)
        if answer.status == http.HTTPStatus.SWITCHING_PROTOCOLS:
            keep_alive(connection.sock)
            self._sender, self._connected_at = HeartbeatSender(connection.sock), time.monotonic()
            self._on_answer()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
        self._connection = self._sender = None
        self._awaits_answer = False

    def _request(self, delay: float) -> None:
        """A heartbeat to who takes no frames."""
        assert self._connection is not None
        path = f"{self._path}?delay={delay:.3f}" if self.is_warm else self._cold_path
        answer = self._exchange(self._connection, "POST", path, {"Content-Length": "0"})
        self._on_answer()
        if answer.status == http.HTTPStatus.NOT_FOUND:
            self._on_lost(self._asked_at)

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        """Send a request and read the answer."""
        self._asked_at, self._awaits_answer = time.monotonic(), True
        connection.request(method, path, headers={**self._headers, **headers})
        answer = connection.getresponse()
        answer.read()
        self._awaits_answer = False
        return answer

    def _on_answer(self) -> None:
        """The coordinator lives."""
        self._awaits_answer, self._unanswered_since = False, None
        self._patience.note(late=False)

    # --- frames -----------------------------------------------------------------------------------

    def _send_frame(self, sender: HeartbeatSender, delay: float, now: float) -> None:
        wants = not self._awaits_answer and now - self._asked_at >= self._ask_seconds
        if wants:
            self._awaits_answer, self._asked_at = True, now
        kind = Kind.ALIVE if self.is_warm else Kind.IMPORTING
        sender.send(Beat(kind, int(now * 1e9), wants, delay))

    def _require_answer(self, now: float) -> None:
        seconds = max(STALL_SECONDS, self._answer_seconds * self._patience.factor)
        if self._awaits_answer and now - self._asked_at >= seconds:
            self._on_lost(now)
            raise TimeoutError("no answer to a heartbeat")

    def _await(self, due: float, woken: socket.socket) -> float:
        """Read answers until the next heartbeat is due. Returns when that is: sooner, where the
        connection ends or the coordinator is elsewhere.
        """
        while (left := due - time.monotonic()) > 0:
            ready = self._ready(left, woken)
            if woken.fileno() in ready:
                woken.recv(64)
                return time.monotonic()
            if ready and not self._receive():
                lasted = time.monotonic() - self._connected_at
                pause = AGAIN_SECONDS if lasted > RETRY_SECONDS else self._retry_seconds()
                due = min(due, time.monotonic() + pause)
        return due

    def _ready(self, seconds: float, woken: socket.socket) -> set[int]:
        """Descriptors that can be read within so many seconds."""
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        if self._sender is not None:
            poll.register(self._sender, select.POLLIN)
        return {descriptor for descriptor, _ in poll.poll(seconds * 1000)}

    def _receive(self) -> bool:
        """Read answers; False: the connection is over."""
        assert self._sender is not None
        try:
            answers = self._sender.receive()
        except OSError:
            self._disconnect()
            return False
        self._on_answer()
        unknown = [answer.stamp for answer in answers if answer.kind is Kind.UNKNOWN]
        if unknown:
            self._on_lost(max(unknown) / 1e9)
        return True
