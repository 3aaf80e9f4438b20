"""Where more connections come than can be served, the newest go first: real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from regroup_trainer.system import newest_first
from regroup_trainer.system.newest_first import NewestFirst, bound_sockets
from tests.support.waiting import until

LIMIT = 100


@dataclass
class Site:
    """Notes the first byte of each connection that is served."""

    served: list[bytes] = field(default_factory=list)
    peers: list[socket.socket] = field(default_factory=list)
    listener: NewestFirst = field(init=False)
    port: int = 0

    async def listen(self) -> None:
        sockets = await bound_sockets("127.0.0.1", 0)
        self.port = sockets[0].getsockname()[1]
        self.listener = NewestFirst(sockets, lambda: Noting(self.served), lambda: LIMIT)

    def connect(self, count: int) -> list[socket.socket]:
        """Before the loop goes on, so that all of them wait together."""
        made = []
        for _ in range(count):
            peer = socket.create_connection(("127.0.0.1", self.port), timeout=10)
            peer.sendall(bytes([len(self.peers)]))
            peer.setblocking(False)
            self.peers.append(peer)
            made.append(peer)
        return made


class Noting(asyncio.Protocol):
    def __init__(self, served: list[bytes]) -> None:
        self._served = served
        self.is_connected = False

    def connection_made(self, _transport: asyncio.BaseTransport) -> None:
        self.is_connected = True

    def data_received(self, data: bytes) -> None:
        self._served.append(data)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    await made.listen()
    yield made
    for peer in made.peers:
        peer.close()
    await made.listener.close()


def is_closed(peer: socket.socket) -> bool:
    """Whether the other end has closed it."""
    with contextlib.suppress(BlockingIOError):
        try:
            return peer.recv(1) == b""
        except ConnectionError:
            return True
    return False


async def test_the_newest_are_served_first_and_all_are_served(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_first, "MOST_SERVED", 1)
    site.connect(20)
    await until("all to be served", lambda: len(site.served) == 20)
    assert site.served == [bytes([number]) for number in reversed(range(20))]
    assert site.listener.waits_since() is None


async def test_a_connection_that_was_given_up_is_not_served(site: Site) -> None:
    for peer in site.connect(10):
        peer.close()
    site.connect(2)
    await until("the others to be served", lambda: len(site.served) == 2)
    assert sorted(site.served) == [b"\n", b"\x0b"]


@pytest.fixture
def none_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_first, "MOST_SERVED", 0)


@pytest.mark.usefixtures("none_served")
async def test_since_when_the_oldest_waits_is_known_unless_its_peer_has_given_up(
    site: Site,
) -> None:
    begun = time.monotonic()
    peers = site.connect(2)
    await until("the oldest", lambda: (site.listener.waits_since() or 0) >= begun)
    for peer in peers:
        peer.close()
    await until("none to wait", lambda: site.listener.waits_since() is None)


@pytest.mark.usefixtures("none_served")
async def test_who_has_given_up_after_a_while_counts_until_it_is_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two tries of a peer nothing of it waits, and it must not count as silent."""
    monkeypatch.setattr(newest_first, "LATE_SECONDS", 0.0)
    monkeypatch.setattr(newest_first, "AGAIN_SECONDS", 0.3)
    (peer,) = site.connect(1)
    await until("it to wait", lambda: site.listener.waits_since() is not None)
    since = site.listener.waits_since() or 0.0
    peer.close()
    given_up = time.monotonic()
    site.connect(1)
    assert site.listener.waits_since() == since
    monkeypatch.setattr(newest_first, "MOST_SERVED", 64)
    site.connect(1)
    await until("all to be served", lambda: len(site.served) == 2)
    await until("it to be back", lambda: site.listener.waits_since() is None)
    assert time.monotonic() - given_up >= 0.3


@pytest.mark.usefixtures("none_served")
async def test_who_has_given_up_holds_nothing_back_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("LATE", 0.0), ("AGAIN", 60.0), ("LONGEST_WAIT", 0.1)):
        monkeypatch.setattr(newest_first, f"{name}_SECONDS", seconds)
    (peer,) = site.connect(1)
    await until("it to wait", lambda: site.listener.waits_since() is not None)
    since = site.listener.waits_since() or 0.0
    peer.close()
    await until("the bound", lambda: (site.listener.waits_since() or 0.0) > since)


@pytest.mark.usefixtures("none_served")
async def test_those_that_wait_are_bounded(site: Site) -> None:
    oldest, *others = site.connect(LIMIT + 1)
    await until("the oldest to be closed", lambda: is_closed(oldest))
    assert not any(map(is_closed, others))


@pytest.mark.usefixtures("none_served")
async def test_none_waits_for_ever(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_first, "LONGEST_WAIT_SECONDS", 0.0)
    (peer,) = site.connect(1)
    await until("it to be closed", lambda: is_closed(peer))


async def test_without_a_place_for_one_more_others_wait_in_the_kernel(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(newest_first, "PAUSE_SECONDS", 0.01)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    site.connect(1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        await until("two tries", lambda: caplog.text.count("no connections are accepted") > 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not site.served
    await until("it to be served", lambda: len(site.served) == 1)


async def test_one_that_is_taken_while_it_closes_is_served_before_its_end() -> None:
    """Nobody would close it afterwards."""
    taken, was_served, ends = Noting([]), list[bool](), list[asyncio.Task[None]]()

    async def end() -> None:
        await listener.close()
        was_served.append(taken.is_connected)

    def take() -> Noting:
        ends.append(asyncio.create_task(end()))
        return taken

    (listening,) = await bound_sockets("127.0.0.1", 0)
    listener = NewestFirst([listening], take, lambda: LIMIT)
    with socket.create_connection(listening.getsockname(), timeout=10):
        await until("its end", lambda: bool(was_served))
    assert was_served == [True]
