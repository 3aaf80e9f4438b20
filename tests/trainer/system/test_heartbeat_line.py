"""Frames of heartbeats: what is read of them, and who is answered."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.system.heartbeat_line import (
    MOST_FRAMES,
    Beat,
    FrameBuffer,
    HeartbeatReader,
    HeartbeatReaders,
    HeartbeatSender,
    Kind,
)
from tests.support.waiting import until

frames = st.builds(
    Beat,
    st.sampled_from(Kind),
    st.integers(0, 2**64 - 1),
    st.booleans(),
    st.integers(0, 10**6).map(lambda milliseconds: milliseconds / 1000),
)


class Transport(asyncio.Transport):
    """The coordinator's end of a connection. Keeps what is written; its peer reads that while
    `reads`.
    """

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.theirs = socket.create_connection(server.getsockname())
            self.ours, _ = server.accept()
        self.ours.setblocking(False)
        super().__init__({"socket": self.ours})
        self.written: list[bytes] = []
        self.aborted = False
        self.reads = True

    def pause_reading(self) -> None:
        """asyncio reads nothing here."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0 if self.reads else sum(map(len, self.written))

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class Reader:
    """The coordinator's end, to which everybody is known or nobody."""

    def __init__(self, *, knows: bool = True) -> None:
        self.transport = Transport()
        self.seen: list[Beat] = []
        self.protocol = HeartbeatReader(
            self.transport, lambda frame: self._note(frame, knows), lambda: None
        )

    def read(self, text: bytes) -> None:
        """It arrives, and is read once."""
        self.transport.theirs.sendall(text)
        self.protocol.read(self.transport.ours.fileno())

    def _note(self, frame: Beat, knows: bool) -> bool:
        self.seen.append(frame)
        return knows

    def answers(self) -> list[Beat]:
        """What it has written."""
        return [Beat.decode(text) for text in self.transport.written]


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.transport.close()


@given(st.lists(frames, max_size=5), st.integers(1, 40))
def test_frames_arrive_however_the_network_cuts_them(sent: list[Beat], size: int) -> None:
    text = b"".join(frame.encode() for frame in sent)
    assert len(text) == 16 * len(sent)
    buffer, arrived = FrameBuffer(), list[Beat]()
    for start in range(0, len(text), size):
        arrived += buffer.add(text[start : start + size])
    assert arrived == sent


def test_a_delay_beyond_what_a_frame_can_say_is_the_greatest() -> None:
    assert Beat.decode(Beat(Kind.ALIVE, 1, delay=1e12).encode()).delay == (2**32 - 1) / 1000


def test_only_who_wants_it_is_answered(reader: Reader) -> None:
    reader.read(Beat(Kind.ALIVE, 7).encode())
    assert reader.answers() == []
    reader.read(Beat(Kind.ALIVE, 8, wants_answer=True).encode())
    assert reader.answers() == [Beat(Kind.KNOWN, 8)]


def test_who_is_unknown_learns_so() -> None:
    reader = Reader(knows=False)
    with contextlib.closing(reader.transport):
        reader.read(Beat(Kind.ALIVE, 7).encode())
    assert reader.answers() == [Beat(Kind.UNKNOWN, 7)]


def test_of_frames_that_arrive_together_the_newest_counts_with_the_greatest_delay(
    reader: Reader,
) -> None:
    sent = [Beat(Kind.ALIVE, 1, delay=2.5), Beat(Kind.ALIVE, 2, wants_answer=True)]
    reader.read(b"".join(frame.encode() for frame in [*sent, sent[0]]))
    assert reader.seen == [Beat(Kind.ALIVE, 1, wants_answer=True, delay=2.5)]
    assert len(reader.answers()) == 1


def test_of_a_flood_few_frames_are_read_at_a_time(reader: Reader) -> None:
    reader.read(b"".join(Beat(Kind.ALIVE, stamp).encode() for stamp in range(2 * MOST_FRAMES)))
    assert [frame.stamp for frame in reader.seen] == [MOST_FRAMES - 1]
    reader.read(b"")
    assert [frame.stamp for frame in reader.seen] == [MOST_FRAMES - 1, 2 * MOST_FRAMES - 1]


def test_a_look_without_anything_there_changes_nothing(reader: Reader) -> None:
    reader.read(b"")
    assert not reader.transport.aborted


def test_the_end_of_its_peer_ends_a_connection(reader: Reader) -> None:
    reader.transport.theirs.close()
    reader.protocol.read(reader.transport.ours.fileno())
    assert reader.transport.aborted


async def test_one_that_fails_does_not_keep_others_from_being_read() -> None:
    readers, seen = HeartbeatReaders(), list[int]()
    bad, good = Transport(), Transport()

    def fail(_frame: Beat) -> bool:
        raise LookupError

    def note(frame: Beat) -> bool:
        seen.append(frame.stamp)
        return True

    def is_newest(stamp: int) -> bool:
        return seen[-1:] == [stamp]

    protocols = [
        readers.accept(bad, fail, lambda: None),
        readers.accept(good, note, lambda: seen.append(-1)),
    ]
    for stamp in (1, 2):
        for one in (bad, good):
            one.theirs.sendall(Beat(Kind.ALIVE, stamp).encode())
        await until("a frame", functools.partial(is_newest, stamp))
    assert bad.aborted
    assert not good.aborted
    for protocol, transport in zip(protocols, (bad, good), strict=True):
        protocol.connection_lost(None)
        transport.close()
    assert seen == [1, 2, -1]
    again = Transport()  # the next one, after all are gone
    protocol = readers.accept(again, note, lambda: None)
    again.theirs.sendall(Beat(Kind.ALIVE, 3).encode())
    await until("a frame", lambda: seen[-1] == 3)
    protocol.connection_lost(None)
    again.close()


@pytest.mark.parametrize("text", [b"GET /v1/status HTTP/1.1\r\n\r\n", bytes(16), b"\xff" * 16])
def test_whoever_sends_anything_else_is_not_read(reader: Reader, text: bytes) -> None:
    reader.read(text)
    assert reader.transport.aborted
    assert reader.seen == []


def test_a_peer_that_does_not_read_gets_no_second_answer(reader: Reader) -> None:
    reader.transport.reads = False
    for stamp in range(100):
        reader.read(Beat(Kind.ALIVE, stamp, wants_answer=True).encode())
    assert reader.answers() == [Beat(Kind.KNOWN, 0)]
    assert len(reader.seen) == 100


def test_the_end_of_a_connection_and_nonsense_are_errors_of_the_connection() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = HeartbeatSender(ours)
        theirs.sendall(b"\xff" * 16)
        with pytest.raises(ConnectionAbortedError):
            sender.receive()
        theirs.close()
        with pytest.raises(ConnectionResetError):
            sender.receive()
