"""What a coordinator sends before, between and instead of an answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import gzip
import itertools
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.client_proto import ResponseHandler

from regroup_operator.api.resource import Key
from regroup_operator.controller import coordination, metered_answers
from regroup_operator.controller.contact_clock import ContactClock
from regroup_operator.controller.coordination import Coordinators
from regroup_operator.controller.coordinator_requests import (
    BEGIN_SECONDS,
    LARGE_BYTES,
    Requests,
    open_session,
    read_body,
)
from regroup_operator.controller.followed_coordinator import Target
from regroup_operator.controller.metered_answers import (
    ALLOWED_SECONDS,
    SMALL_BYTES,
    Meter,
    charged_to,
    metered,
)
from regroup_operator.errors import CoordinatorError, CostlyAnswerError, NoAnswerError
from regroup_operator.observe.observed import CoordinatorView
from tests.support.async_server import AsyncServer
from tests.support.raw_coordinator import RawCoordinator
from tests.support.waiting import until

KEY: Key = ("default", "gpt")
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


Follow = Callable[[RawCoordinator], Callable[[], CoordinatorView]]
"""Follows a coordinator; returns what shows its view."""


@pytest.fixture
async def follow() -> AsyncIterator[Follow]:
    async with open_session() as session:
        coordinators = Coordinators(session, lambda _key: None)

        def begin(stub: RawCoordinator) -> Callable[[], CoordinatorView]:
            coordinators.follow(KEY, Target("uid", stub.address, 1, "secret"), workers=8)
            return lambda: coordinators.view(KEY, 1, ())

        yield begin
        coordinators.close()


@pytest.mark.parametrize(("first", "more"), [(b"", INTERIM), (b"HTTP/1.1 200 OK\r\n", b"x")])
async def test_an_answer_that_does_not_begin_in_time_is_none(
    first: bytes, more: bytes, follow: Follow
) -> None:
    """Each part begins the time between two reads anew, and a watch has no other."""
    with RawCoordinator(first, more, pause=0.2) as stub:
        began, view = time.monotonic(), follow(stub)
        await until("time without an answer", lambda: view().unanswered_seconds > 0, 20)
        assert time.monotonic() - began > 0.9 * BEGIN_SECONDS
        assert view().error.endswith("/v1/watch: it takes too long")


@pytest.mark.parametrize(
    "flood", [INTERIM * 9_000, (b"HTTP/1.1 103 a\r\n" + b"a: b\r\n" * 100 + b"\r\n") * 300]
)
async def test_a_flood_of_interim_answers_is_refused_at_once_and_not_soon_asked_for_again(
    flood: bytes, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def note(least: float, *_: object) -> float:
        pauses.append(least)
        return least

    monkeypatch.setattr(coordination, "answer_pause", note)
    with RawCoordinator(b"", flood) as stub:
        used, view = time.thread_time(), follow(stub)
        await until("a pause", lambda: bool(pauses), 20)
        assert pauses == [coordination.COSTLY_PAUSE_SECONDS]
        assert time.thread_time() - used < 2 * ALLOWED_SECONDS
        assert view().error.endswith("/v1/watch: reading it takes too much time")
        assert view().unanswered_seconds == 0.0, "it is an answer"


@contextlib.asynccontextmanager
async def open_requests() -> AsyncIterator[Requests]:
    """Requests, by a clock that ticks."""
    clock = ContactClock()
    ticking = asyncio.create_task(clock.run())
    try:
        async with open_session() as session:
            yield Requests(session, clock)
    finally:
        ticking.cancel()


async def ask(stub: RawCoordinator, most: int) -> bytearray:
    """A status of at most so many bytes."""
    async with open_requests() as requests:
        url = f"http://{stub.address}:8471/v1/status"
        read = functools.partial(read_body, most=most)
        return await requests.send("GET", url, "secret", read=read)


async def test_a_body_that_does_not_end_in_time_is_ended() -> None:
    with RawCoordinator(CHUNKED, b"1\r\na\r\n", pause=0.2) as stub:
        began = time.monotonic()
        with pytest.raises(NoAnswerError, match="it takes too long"):
            await ask(stub, 16 * 2**20)
        assert 0.9 * BEGIN_SECONDS < time.monotonic() - began < 4 * BEGIN_SECONDS


async def test_a_body_that_takes_too_long_to_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one in chunks of one byte. Here each 16 KiB take 2 ms more of the thread."""
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=time.monotonic, thread_time=lambda: 0.002 * next(ticks))
    monkeypatch.setattr(metered_answers, "time", clock)
    with RawCoordinator(CHUNKED, b"400\r\n" + b"a" * 1024 + b"\r\n") as stub:
        with pytest.raises(CostlyAnswerError):
            await ask(stub, 16 * 2**20)
        assert next(ticks) < 4 * ALLOWED_SECONDS / 0.002


PIECES = b"1\r\na\r\n" * 1_000


@pytest.mark.parametrize("first", [INTERIM * 200, CHUNKED + PIECES, CHUNKED + b"1388\r\n"])
async def test_what_is_longer_than_an_answer_may_be_is_not_read(first: bytes) -> None:
    with RawCoordinator(first, PIECES, pause=0.01) as stub, charged_to(Meter(SMALL_BYTES)) as meter:
        with pytest.raises(CostlyAnswerError, match="it is too long"):
            await ask(stub, LARGE_BYTES)
        assert meter.bytes_left >= 0


async def test_what_answers_take_is_charged_to_one_meter_whatever_connection_they_come_over() -> (
    None
):
    answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n" + b"a" * 1000
    meter = Meter(10_000)
    with RawCoordinator(answer, b"", pause=0.1) as stub, charged_to(meter):
        for number in range(1, 4):
            before = meter.seconds
            await ask(stub, LARGE_BYTES)
            assert stub.connections == number
            assert meter.seconds > before
    assert meter.bytes_left == 10_000 - 3 * len(answer)
    assert meter.take() > 0.0
    assert meter.seconds == 0.0


async def test_no_answer_pays_for_a_collection_of_all_garbage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes in the middle of whatever is read."""
    read = ResponseHandler.data_received
    heap: list[list[int]] = [[] for _ in range(300_000)]

    def read_and_collect(self: ResponseHandler, data: bytes) -> None:
        for _ in range(10):
            gc.collect()
        assert len(heap) == 300_000
        read(self, data)

    monkeypatch.setattr(ResponseHandler, "data_received", read_and_collect)
    monkeypatch.setattr(metered_answers, "ALLOWED_SECONDS", 0.02)
    with RawCoordinator(CHUNKED + b"1\r\na\r\n0\r\n\r\n", b"", pause=0.1) as stub:
        with charged_to(Meter()) as meter:
            used = time.thread_time()
            assert await ask(stub, LARGE_BYTES) == b"a"
        assert time.thread_time() - used > 0.1
        assert meter.take() < 0.06


class LargeStatus(AsyncServer):
    """Answers 2 MiB, each time over the same connection."""

    body = b"x" * 2 * 2**20

    async def _answer(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(body=self.body)


async def test_large_answers_in_a_row_are_read_however_many_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metered_answers, "ALLOWED_SECONDS", 0.02)
    monkeypatch.setattr(metered_answers, "ALLOWED_SHARE", 0.0)
    read = functools.partial(read_body, most=4 * 2**20)
    async with LargeStatus() as server, open_requests() as requests:
        for _ in range(30):
            answer = await requests.send("GET", server.url, "secret", read=read)
            assert answer == server.body


async def test_an_answer_is_not_decompressed() -> None:
    bomb = gzip.compress(b"0" * 10 * 2**20)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    with RawCoordinator(head % len(bomb) + bomb, b"") as stub:
        assert await ask(stub, LARGE_BYTES) == bomb


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (CHUNKED + b"0\r\n", b"a: b\r\n" * 10_000),
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 10_000),
        (b"HTTP/1.1 200 OK\r\n", b"Set-Cookie: a=b; Domain=example.com\r\n" * 10_000),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", b"x"),
        (CHUNKED + b"ffffffffffffffff\r\n", b"x" * 65_536),
        (b"\0" * 100, b"\xff" * 65_536),
        (b"HTTP/9.9 999 \x1b[2J\r\n\r\n", b""),
    ],
)
async def test_what_is_no_http_ends_in_time_with_a_reason_in_one_line(
    first: bytes, more: bytes
) -> None:
    with RawCoordinator(first, more, pause=0.0 if more else 0.1) as stub:
        with pytest.raises(CoordinatorError) as caught:
            await ask(stub, LARGE_BYTES)
        assert str(caught.value).isprintable()


async def test_a_redirect_is_not_followed() -> None:
    with RawCoordinator(INTERIM, b"") as other:
        location = f"http://{other.address}:8471/v1/status".encode()
        answer = b"HTTP/1.1 307 a\r\nContent-Length: 0\r\nLocation: " + location + b"\r\n\r\n"
        with RawCoordinator(answer, b"", pause=0.1) as stub, pytest.raises(CoordinatorError) as why:
            await ask(stub, LARGE_BYTES)
        assert not isinstance(why.value, NoAnswerError)
        assert other.connections == 0


def busy(seconds: float) -> None:
    """Take so much of the thread."""
    until_then = time.thread_time() + seconds
    while time.thread_time() < until_then:
        pass


async def test_what_steps_of_a_coroutine_take_is_charged_however_it_ends() -> None:
    """Not what others take meanwhile."""
    meter, others = Meter(), asyncio.Event()

    async def work(error: Exception | None) -> str:
        busy(0.02)
        await others.wait()
        busy(0.02)
        if error:
            raise error
        return "done"

    async def other() -> None:
        busy(0.1)
        others.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(other())
        assert await metered(work(None), meter) == "done"
    assert 0.04 <= meter.take() < 0.1
    with pytest.raises(ValueError, match="broken"):
        await metered(work(ValueError("broken")), meter)
    assert 0.04 <= meter.take() < 0.1


async def test_a_coroutine_that_is_metered_can_be_cancelled() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def round_of_a_job() -> None:
        await metered(work(), Meter())

    task = asyncio.create_task(round_of_a_job())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
