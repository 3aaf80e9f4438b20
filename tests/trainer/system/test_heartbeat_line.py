"""Frames of heartbeats: what is read of them, and who is answered."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.system.heartbeat_line import (
    MOST_FRAMES,
    Beat,
    FrameBuffer,
    HeartbeatReader,
    HeartbeatSender,
    Kind,
)

frames = st.builds(
    Beat,
    st.sampled_from(Kind),
    st.integers(0, 2**64 - 1),
    st.booleans(),
    st.integers(0, 10**6).map(lambda milliseconds: milliseconds / 1000),
)


class Transport(asyncio.Transport):
    """Keeps what is written; its peer reads while `reads`."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False
        self.reads = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0 if self.reads else sum(map(len, self.written))

    def abort(self) -> None:
        self.aborted = True


class Reader:
    """The coordinator's end, to which everybody is known or nobody."""

    def __init__(self, *, knows: bool = True) -> None:
        self.transport = Transport()
        self.seen: list[Beat] = []
        self.ended = False
        self.protocol = HeartbeatReader(
            self.transport, lambda frame: self._note(frame, knows), self._end
        )

    def read(self, text: bytes) -> None:
        """It arrives."""
        buffer = self.protocol.get_buffer(-1)
        buffer[: len(text)] = text
        self.protocol.buffer_updated(len(text))

    def _end(self) -> None:
        self.ended = True

    def _note(self, frame: Beat, knows: bool) -> bool:
        self.seen.append(frame)
        return knows

    def answers(self) -> list[Beat]:
        """What it has written."""
        return [Beat.decode(text) for text in self.transport.written]


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


def test_only_who_wants_it_is_answered() -> None:
    reader = Reader()
    reader.read(Beat(Kind.ALIVE, 7).encode())
    assert reader.answers() == []
    reader.read(Beat(Kind.ALIVE, 8, wants_answer=True).encode())
    assert reader.answers() == [Beat(Kind.KNOWN, 8)]


def test_who_is_unknown_learns_so() -> None:
    reader = Reader(knows=False)
    reader.read(Beat(Kind.ALIVE, 7).encode())
    assert reader.answers() == [Beat(Kind.UNKNOWN, 7)]


def test_of_frames_that_arrive_together_the_newest_counts_with_the_greatest_delay() -> None:
    reader = Reader()
    sent = [Beat(Kind.ALIVE, 1, delay=2.5), Beat(Kind.ALIVE, 2, wants_answer=True)]
    reader.read(b"".join(frame.encode() for frame in [*sent, sent[0]]))
    assert reader.seen == [Beat(Kind.ALIVE, 1, wants_answer=True, delay=2.5)]
    assert len(reader.answers()) == 1


def test_of_a_flood_few_frames_are_read_at_a_time() -> None:
    assert len(Reader().protocol.get_buffer(256 * 1024)) == 16 * MOST_FRAMES


def test_the_end_of_a_connection_is_passed_on() -> None:
    reader = Reader()
    reader.protocol.connection_lost(None)
    assert reader.ended


@pytest.mark.parametrize("text", [b"GET /v1/status HTTP/1.1\r\n\r\n", bytes(16), b"\xff" * 16])
def test_whoever_sends_anything_else_is_not_read(text: bytes) -> None:
    reader = Reader()
    reader.read(text)
    assert reader.transport.aborted
    assert reader.seen == []


def test_a_peer_that_does_not_read_gets_no_second_answer() -> None:
    reader = Reader()
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
