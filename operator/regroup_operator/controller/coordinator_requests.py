"""Requests to coordinators and agents: by IP and with the job's token, without redirects, and with
bounds for the time and the size of an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus

import aiohttp

from regroup_operator.controller.contact_clock import ContactClock, SetLimit
from regroup_operator.controller.metered_answers import (
    MeteredAnswers,
    MeteredConnector,
    TooCostlyError,
)
from regroup_operator.errors import (
    CoordinatorError,
    CostlyAnswerError,
    NoAnswerError,
    NoWatchError,
)
from regroup_operator.informer.write_guard import Guard, checks, guarded, unguarded
from regroup_trainer.protocol.job_status import WATCH_LINE_BYTES
from regroup_trainer.protocol.message import printable
from regroup_trainer.system.connection_errors import why_no_answer

TIMEOUT_SECONDS = 2.0
WAIT_SECONDS = 1.0
"""How long a coordinator may hold an answer back."""
LATE_SECONDS = 2.1
"""How late a line of a watch may come. With the second between two lines this is a little more than
UNANSWERED_SECONDS: a coordinator is unresponsive as soon as its watch is.
"""
TICKS_SECONDS = 0.5
"""For a line at least: some rounds of the event loop."""
BEGIN_SECONDS = WAIT_SECONDS + TIMEOUT_SECONDS
"""Until an answer is there; of a watch, its status and its headers."""
LARGE_BYTES = 256 * 1024
"""Of an answer. What is longer is read when no other such answer of its namespace is."""
TURN_PATIENCE_SECONDS = 1.0
"""How long it waits for that. A coordinator whose answer is put off is there all the same."""

Read = Callable[[aiohttp.ClientResponse], Awaitable[bytearray]]
"""Reads a body. Raises CoordinatorError."""

_READ = aiohttp.ClientTimeout(total=None)
"""No limit beside that of the clock of contact."""
_WRITE = aiohttp.ClientTimeout(total=BEGIN_SECONDS, sock_connect=TIMEOUT_SECONDS)
"""By the wall clock: a leader's lease ends by it too."""


def open_session(guard: Guard = unguarded) -> aiohttp.ClientSession:
    """For Requests with that guard, which does not close it. It has as many connections as there
    are jobs: a request that waits for another one's connection looks unanswered. Nothing is
    decompressed: a bound of what arrives would be none.
    """
    return aiohttp.ClientSession(
        connector=MeteredConnector(),
        trace_configs=checks(guard),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
    )


class Requests:
    """Sends requests over a session. `guard` is asked before each that changes something. `clock`
    must tick while there is a request that reads: that has no other time limit.
    """

    def __init__(
        self, session: aiohttp.ClientSession, clock: ContactClock, guard: Guard = unguarded
    ) -> None:
        self._session = session
        self._clock = clock
        self._guard = guard

    async def send(
        self, method: str, url: str, token: str, body: str | None = None, read: Read | None = None
    ) -> bytearray:
        """The body of the answer. Raises CoordinatorError."""
        timeout = _READ if method == "GET" else _WRITE
        async with self._answer(method, url, token, timeout, body) as (answer, _set_limit):
            content = await (read or read_body)(answer)
        if answer.status >= 300:
            raise _refused(method, url, answer.status, content)
        return content

    @asynccontextmanager
    async def watch(
        self, url: str, token: str, every: float, is_taken: Callable[[], bool]
    ) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
        """A function that waits until something arrives, and returns the newest line of that; empty
        where nothing is new. `is_taken` is called for empty lines that come alone, and returns
        whether that is all: then the wait goes on. Raises NoWatchError where there is no watch,
        NoAnswerError at its end and where no line comes `every` so many seconds, and
        CoordinatorError.
        """
        url_every = f"{url}?every={every:.2f}"
        async with self._answer("GET", url_every, token, _READ) as (answer, set_limit):
            if answer.status == HTTPStatus.NOT_FOUND:
                raise NoWatchError(url)
            if answer.status >= 300:
                raise _refused("GET", url, answer.status, await read_body(answer))
            buffer, end = LineBuffer(), self._clock.now() + every + LATE_SECONDS
            waits = False

            def takes_empty_line() -> bool:
                if not waits or buffer.has_part or not is_taken():
                    return False
                set_limit(every + LATE_SECONDS)
                return True

            protocol = answer.connection and answer.connection.protocol
            if isinstance(protocol, MeteredAnswers):
                protocol.takes_empty_line = takes_empty_line

            async def next_line() -> bytes:
                nonlocal end, waits
                # What has come during a pause is there at once.
                set_limit(max(end - self._clock.now(), TICKS_SECONDS))
                waits = True
                chunk = await answer.content.readany()
                waits = False
                set_limit(None)  # whoever reads may pause before the next line
                end = self._clock.now() + every + LATE_SECONDS
                if not chunk:
                    raise NoAnswerError(f"{url}: the connection was closed")
                return buffer.newest(chunk)

            yield next_line

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        url: str,
        token: str,
        timeout: aiohttp.ClientTimeout,
        body: str | None = None,
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, SetLimit]]:
        """An answer, and what sets the limit of its time anew. An error of the connection is
        a NoAnswerError, then and later.

        The limit is one of the whole: interim answers (1xx) begin none, and each of them would
        begin the time between two reads anew.
        """
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            async with (
                self._clock.timeout(BEGIN_SECONDS) as set_limit,
                self._session.request(
                    method,
                    url,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    **guarded(method, self._guard, timeout),
                ) as answer,
            ):
                yield answer, set_limit
        except TooCostlyError as error:
            where = url.partition("?")[0]
            raise CostlyAnswerError(f"{where}: {error}") from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            where = url.partition("?")[0]
            raise NoAnswerError(f"{where}: {why_no_answer(error)}") from error


class LineBuffer:
    """Cuts a stream into lines. What it keeps is never longer than a line may be."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def has_part(self) -> bool:
        """Whether a line has begun that has not ended."""
        return bool(self._rest)

    def newest(self, chunk: bytes) -> bytes:
        """The newest line that this chunk completes and that is not empty, without its end: an
        older one is of no use any more. Empty where there is none. Raises CoordinatorError for a
        line that is too long.
        """
        whole, end, rest = (self._rest + chunk).rpartition(b"\n")
        self._rest = rest if end else whole + rest
        newest = whole.rstrip(b"\n").rpartition(b"\n")[2] if end else b""
        if max(len(newest), len(self._rest)) >= WATCH_LINE_BYTES:
            raise CoordinatorError(f"a line of its watch above {WATCH_LINE_BYTES} bytes")
        return newest


async def read_body(
    answer: aiohttp.ClientResponse, most: int = LARGE_BYTES, turn: asyncio.Lock | None = None
) -> bytearray:
    """The body. Raises CoordinatorError above `most` bytes, and where it is not its turn."""
    body = bytearray()
    async with AsyncExitStack() as held:
        async for chunk in answer.content.iter_chunked(65536):
            if turn and len(body) <= LARGE_BYTES < len(body) + len(chunk):
                await _take(turn, answer)
                held.callback(turn.release)
            body += chunk
            if len(body) > most:
                raise CoordinatorError(f"{answer.url}: an answer above {most} bytes")
    return body


async def _take(turn: asyncio.Lock, answer: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(TURN_PATIENCE_SECONDS):
            await turn.acquire()
    except TimeoutError as error:
        raise CoordinatorError(
            f"{answer.url}: its large answer is put off: another of its namespace is being read"
        ) from error


def _refused(method: str, url: str, status: int, content: bytearray) -> CoordinatorError:
    # A tenant's program wrote it: in a log it must look like no other line.
    text = content[:300].decode(errors="replace")
    return CoordinatorError(f"{method} {url}: {status} {printable(text)}")
