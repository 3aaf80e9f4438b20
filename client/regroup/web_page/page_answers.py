"""What the web page is answered: reads the source in threads, and keeps what was read for a while.

However many pages are open, and however often they ask, a cluster is asked once in so many seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from regroup.web_page import page_data
from regroup.web_page.job_source import JobSource

Value = TypeVar("Value")
LOOK_SECONDS = 1.5
"""For which a job's status, series and logs are kept."""
LIST_SECONDS = 4.0
"""The same of the list of jobs."""
CHECKPOINT_SECONDS = 15.0
"""The same of checkpoints: to list them starts a process, here or in a pod."""
MOST_KEPT = 64
"""Answers that are kept."""
MOST_THREADS = 4
"""Reads at the same time."""
MOST_SLOW_THREADS = 2
"""The same of reads that start a pod: nothing else waits for these."""


class PageAnswers:
    """The answers of one server, as JSON. Methods raise what the source raises."""

    def __init__(self, source: JobSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._kept: dict[tuple[Any, ...], tuple[float, Any]] = {}
        """The oldest first."""
        self._reading: dict[tuple[Any, ...], asyncio.Future[Any]] = {}
        self._threads = asyncio.Semaphore(MOST_THREADS)
        self._slow_threads = asyncio.Semaphore(MOST_SLOW_THREADS)

    async def jobs(self, start: int, text: str) -> bytes:
        """A page of the list."""
        found = await self._recent(("jobs",), self._source.jobs, LIST_SECONDS)
        page = page_data.job_page(found, start, text)
        return _encoded({"title": self._source.title, **page})

    async def job(self, identifier: str) -> bytes:
        """The details of a job, read at most once in LOOK_SECONDS."""
        key = ("job", identifier)
        view = await self._recent(key, lambda: self._source.view(identifier), LOOK_SECONDS)
        return _encoded(page_data.job_details(identifier, view, datetime.now(UTC)))

    async def series(self, identifier: str) -> bytes:
        """Its loss over time."""
        key = ("series", identifier)
        points = await self._recent(key, lambda: self._source.series(identifier), LOOK_SECONDS)
        return _encoded(page_data.series_columns(points))

    async def kept_series(self, identifier: str) -> bytes:
        """The same of a job that rests; the source remembers it."""
        key = ("kept series", identifier)
        read = partial(self._source.kept_series, identifier)
        points = await self._recent(key, read, 0.0, self._slow_threads)
        self._kept.pop(("checkpoints", identifier), None)  # the source knows more of them now
        return _encoded(page_data.series_columns(points))

    async def checkpoints(self, identifier: str) -> bytes:
        """A row for each of its checkpoints: step, size, whether it may be resumed."""
        key = ("checkpoints", identifier)
        read = lambda: self._source.checkpoints(identifier)  # noqa: E731
        return _encoded(
            page_data.checkpoint_rows(await self._recent(key, read, CHECKPOINT_SECONDS))
        )

    async def logs(self, identifier: str, rank: int | None) -> bytes:
        """Its last lines."""
        key = ("logs", identifier, rank)
        tail = await self._recent(key, lambda: self._source.logs(identifier, rank), LOOK_SECONDS)
        return _encoded(page_data.log_lines(tail))

    async def _recent(
        self,
        key: tuple[Any, ...],
        read: Callable[[], Value],
        seconds: float,
        threads: asyncio.Semaphore | None = None,
    ) -> Value:
        """What was read a moment ago, else what is read now: once for all who wait for it."""
        time_read, value = self._kept.get(key, (float("-inf"), None))
        if self._clock() - time_read < seconds:
            return value  # type: ignore[no-any-return]
        if key not in self._reading:
            reading = self._reading[key] = asyncio.ensure_future(
                self._read(key, read, threads or self._threads)
            )
            reading.add_done_callback(_take_error)
        return await asyncio.shield(self._reading[key])

    async def _read(
        self, key: tuple[Any, ...], read: Callable[[], Value], threads: asyncio.Semaphore
    ) -> Value:
        try:
            async with threads:
                value = await in_thread(read)
        finally:
            del self._reading[key]
        self._kept.pop(key, None)
        self._kept[key] = (self._clock(), value)
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return value


def _take_error(reading: asyncio.Future[Any]) -> None:
    """Where all who waited are gone, an error is no news."""
    if not reading.cancelled():
        reading.exception()


async def in_thread(work: Callable[[], Value]) -> Value:
    """What `work` returns or raises. Its thread is a daemon: a cluster that does not answer must
    not keep the process after Ctrl-C, as the loop's own threads would.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Value] = loop.create_future()

    def resolve(value: Value | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the process ends, and nobody waits any more
            loop.call_soon_threadsafe(resolve, value, error)

    threading.Thread(target=run, daemon=True, name="regroup-ui").start()
    return await done


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
