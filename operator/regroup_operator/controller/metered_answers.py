"""Connections on which the time that it takes to read what arrives is bounded, and what else is
charged to those who cause it.

A tenant's program answers. Its status line, headers, interim answers (1xx) and chunks are read by
the operator's one thread before anybody sees a body: a flood of them would take all of its time.

A connection is ended once it takes too much. A program may end it sooner, and begin another one, so
what all of them take is charged to a Meter, by which those who ask learn when to ask again.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import math
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import set_exception

T = TypeVar("T")
ALLOWED_SECONDS = 0.1
"""Of the thread, for reading from one connection."""
ALLOWED_SHARE = 0.002
"""Of the thread, for a connection that lasts. A watch takes a tenth of it."""
ALLOWED_EACH = 20e-9
"""Seconds of the thread for each byte. A large status takes a tenth of it, and chunks of one byte
ten times as much.
"""
SMALL_BYTES = 4 * 1024
"""Of an answer, with all that comes before it, where a line is enough for it."""
MOST_ANSWERS = 8
"""Interim ones and the one that is asked for, that arrive at once."""
EMPTY_LINE = b"1\r\n\n\r\n"
"""A chunk that is one, as a coordinator sends it alone to say that nothing has changed."""
_AND_HANDED_ON = 3.0
"""Times what it takes to read an answer is what it takes in all. Most for chunks of one byte: each
of them takes 1.2 us to read, and 1.8 us until it is part of a body.
"""
_SLICE_BYTES = 16 * 1024
"""Are read before the time is looked at."""


class TooCostlyError(aiohttp.ClientError):
    """Reading what a connection brings takes more of the thread, or is longer, than is allowed."""


class _FullCollections(threading.local):
    """Seconds that collections of all garbage took of this thread."""

    seconds = 0.0
    begun = 0.0

    def note(self, phase: str, info: dict[str, int]) -> None:
        """One begins or ends. Those of young objects are the price of whoever made them."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self.begun = time.thread_time()
        else:
            self.seconds += time.thread_time() - self.begun


_full_collections = _FullCollections()
gc.callbacks.append(_full_collections.note)


def thread_seconds() -> float:
    """What this thread has taken of the processor, without full collections of garbage.

    Such a collection looks at all objects of the process, 0.1 s and more with a thousand jobs, and
    comes in the middle of whatever runs: no coordinator is to pay for it.
    """
    return time.thread_time() - _full_collections.seconds


class Meter:
    """What the answers to some requests have cost, whatever connections brought them."""

    def __init__(self, most_bytes: float = math.inf) -> None:
        self.seconds = 0.0
        """Of the thread, since they were last taken."""
        self.bytes_left = most_bytes
        """That may arrive."""

    def charge(self, seconds: float, size: int = 0) -> None:
        """So much time went by for so many bytes."""
        self.seconds += seconds
        self.bytes_left -= size

    def take(self) -> float:
        """The seconds. They are counted from 0 again."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


@types.coroutine
def metered(work: Coroutine[Any, Any, T], meter: Meter) -> Generator[Any, Any, T]:
    """Await `work`, and charge to `meter` what its own steps take of the thread, however it ends.
    Tasks that it starts are none of these.
    """
    step, given = work.send, None
    while True:
        begun = thread_seconds()
        try:
            awaited = step(given)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            meter.charge(thread_seconds() - begun)
        try:
            step, given = work.send, (yield awaited)
        except BaseException as error:
            step, given = work.throw, error


_meter: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def charged_to(meter: Meter) -> Iterator[Meter]:
    """Inside, what answers to this task's requests take is charged to `meter`."""
    token = _meter.set(meter)
    try:
        yield meter
    finally:
        _meter.reset(token)


class MeteredAnswers(ResponseHandler):
    """Reads what arrives on one connection, and ends it with a TooCostlyError."""

    _meter = Meter()
    _spent = 0.0
    _bytes = 0
    _since = float("inf")
    takes_empty_line: Callable[[], bool] | None = None
    """Called for an EMPTY_LINE. Returns whether that is all that is to be done with it: with nearly
    all that a thousand coordinators send, nobody then has to be woken.
    """

    def set_response_params(self, **parameters: Any) -> None:
        """Before each request, in its task: the connection may have been another's before."""
        self._meter, self.takes_empty_line = _meter.get() or Meter(), None
        super().set_response_params(**parameters)

    def data_received(self, data: bytes) -> None:
        """Read it in slices. The time is that of the thread: an operator that waits for its turn
        on the machine spends none.
        """
        if data == EMPTY_LINE and self.takes_empty_line and self.takes_empty_line():
            return
        self._since = min(self._since, time.monotonic())
        if len(data) > self._meter.bytes_left:
            self._end("it is too long")
            return
        for start in range(0, max(1, len(data)), _SLICE_BYTES):  # empty: go on after a pause
            part, begun = data[start : start + _SLICE_BYTES], thread_seconds()
            super().data_received(part)
            self._count(thread_seconds() - begun, len(part))
            if self._spent > self._allowed() or len(self._buffer) > MOST_ANSWERS:
                self._end("reading it takes too much time")
                return

    def _count(self, seconds: float, size: int) -> None:
        self._spent += seconds
        self._bytes += size
        self._meter.charge(_AND_HANDED_ON * seconds, size)

    def _allowed(self) -> float:
        age = time.monotonic() - self._since
        return ALLOWED_SECONDS + ALLOWED_SHARE * age + ALLOWED_EACH * self._bytes

    def _end(self, why: str) -> None:
        error = TooCostlyError(why)
        self.set_exception(error)
        if self._payload is not None:
            set_exception(self._payload, error)
        if self.transport is not None:
            self.transport.abort()


class MeteredConnector(aiohttp.TCPConnector):
    """Makes any number of such connections."""

    def __init__(self) -> None:
        super().__init__(limit=0)
        self._factory = functools.partial(_metered, loop=self._loop)


def _metered(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return MeteredAnswers(loop=loop)
