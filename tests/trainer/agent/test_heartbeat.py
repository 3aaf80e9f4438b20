"""What a heartbeat's thread knows of the coordinator: since when it does not answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from queue import Queue

import pytest

from regroup_trainer.agent import heartbeat as heartbeat_module
from regroup_trainer.agent.heartbeat import Heartbeat
from regroup_trainer.system.heartbeat_line import Kind
from tests.support.frame_server import FrameServer
from tests.support.unresponsive_server import UnresponsiveServer
from tests.support.waiting import wait_until


@pytest.fixture
def heartbeat() -> Iterator[Heartbeat]:
    heartbeat = Heartbeat("http://127.0.0.1:9", "token", "uid-0", 0, 0.02, lambda _at: None)
    yield heartbeat
    heartbeat.stop()
    heartbeat.join(5)


def test_time_is_counted_from_the_first_unanswered_heartbeat_to_the_next_answer(
    heartbeat: Heartbeat,
) -> None:
    assert heartbeat.unanswered_seconds() == 0.0
    heartbeat.start()
    wait_until("time without an answer", lambda: heartbeat.unanswered_seconds() > 0.3)
    with UnresponsiveServer(answers=True) as server:
        heartbeat.url = server.url
        wait_until("an answer", lambda: heartbeat.unanswered_seconds() == 0.0)
        server.answers = False
        wait_until("a heartbeat without an answer", lambda: heartbeat.unanswered_seconds() > 0.5)


def test_an_unresponsive_coordinator_is_asked_again_at_once_although_heartbeats_are_rare(
    heartbeat: Heartbeat,
) -> None:
    heartbeat.seconds = 60.0
    heartbeat.start()
    wait_until("time without an answer", lambda: heartbeat.unanswered_seconds() > 0)
    with UnresponsiveServer(answers=True) as server:
        heartbeat.url = server.url
        wait_until("an answer", lambda: heartbeat.unanswered_seconds() == 0.0, seconds=10)


def test_heartbeats_are_frames_after_one_request(heartbeat: Heartbeat) -> None:
    with FrameServer() as server:
        heartbeat.url = server.url
        heartbeat.start()
        wait_until("frames", lambda: len(server.frames) > 20)
        assert server.requests == ["/v1/heartbeats/0?member=uid-0"]
        assert {frame.kind for frame in server.frames} == {Kind.IMPORTING}
        heartbeat.is_warm = True
        wait_until("another kind", lambda: server.frames[-1].kind is Kind.ALIVE)
        stop(heartbeat)


def nanoseconds_of(wanted: int, heartbeat: Heartbeat) -> int:
    """How long it takes until so many answers are wanted, from the first."""
    with FrameServer() as server:
        heartbeat.url = server.url
        heartbeat.start()
        last = wait_until(
            f"{wanted} that want one",
            lambda: [frame.stamp for frame in server.frames if frame.wants_answer][wanted - 1 :],
        )
        first = next(frame.stamp for frame in server.frames if frame.wants_answer)
        assert heartbeat.unanswered_seconds() == 0.0
        stop(heartbeat)
    return last[0] - first


def test_an_answer_is_wanted_once_a_second_at_most(heartbeat: Heartbeat) -> None:
    assert nanoseconds_of(3, heartbeat) >= 2e9


def test_in_a_large_generation_answers_are_wanted_more_seldom(heartbeat: Heartbeat) -> None:
    heartbeat.begin(agents=4096)
    assert nanoseconds_of(2, heartbeat) >= 2e9


def test_time_counts_from_the_first_frame_whose_answer_does_not_come(
    heartbeat: Heartbeat,
) -> None:
    """A coordinator that hangs keeps its connections open."""
    with FrameServer() as server:
        heartbeat.url = server.url
        heartbeat.start()
        wait_until("frames", lambda: server.frames)
        server.answers = False
        since = wait_until("time without an answer", heartbeat.unanswered_seconds)
        assert since >= 1.0
        server.answers = True
        wait_until("an answer", lambda: heartbeat.unanswered_seconds() == 0.0)
        stop(heartbeat)


def test_a_coordinator_that_is_slow_to_accept_is_given_more_time_each_time(
    heartbeat: Heartbeat,
) -> None:
    """The time without an answer counts all the same. Each try would cost it as much as one that
    succeeds.
    """
    with FrameServer() as server:
        server.accepts.clear()
        heartbeat.url = server.url
        heartbeat.start()
        wait_until("time without an answer", lambda: heartbeat.unanswered_seconds() > 4.5)
        assert len(server.requests) <= 3, "after 1 and 2 seconds, and then 4"
        server.accepts.set()
        wait_until("an answer", lambda: heartbeat.unanswered_seconds() == 0.0)
        stop(heartbeat)


def test_a_coordinator_that_dies_is_looked_for_at_once_although_heartbeats_are_rare(
    heartbeat: Heartbeat,
) -> None:
    heartbeat.seconds = 600.0
    with FrameServer() as server:
        heartbeat.url = server.url
        heartbeat.start()
        wait_until("a frame", lambda: server.frames)
        server.drop()
        wait_until("another connection", lambda: len(server.requests) == 2)
        stop(heartbeat)


def test_a_coordinator_that_moves_is_followed_at_once_although_heartbeats_are_rare(
    heartbeat: Heartbeat,
) -> None:
    heartbeat.seconds = 600.0
    with FrameServer() as server, FrameServer() as successor:
        heartbeat.url = server.url
        heartbeat.start()
        wait_until("a frame", lambda: server.frames)
        heartbeat.url = successor.url
        wait_until("a frame to the successor", lambda: successor.frames)
        stop(heartbeat)


def test_connections_that_are_closed_at_once_are_not_made_anew_without_a_pause(
    heartbeat: Heartbeat,
) -> None:
    heartbeat.seconds = 600.0
    with FrameServer() as server:
        heartbeat.url = server.url
        heartbeat.start()
        begun = time.monotonic()
        for count in range(1, 4):
            wait_until("a frame", partial(server.has_frames, count))
            server.drop()
        assert len(server.requests) == 3
        assert time.monotonic() - begun > 1.8
        stop(heartbeat)


def test_a_coordinator_that_does_not_know_the_member_has_answered(heartbeat: Heartbeat) -> None:
    lost: Queue[float] = Queue()
    heartbeat._on_lost = lost.put
    heartbeat.seconds = 600.0
    with FrameServer() as server:
        server.answer = Kind.UNKNOWN
        heartbeat.url = server.url
        heartbeat.start()
        assert lost.get(timeout=60) == server.frames[0].stamp / 1e9, "when it was sent"
        assert heartbeat.unanswered_seconds() == 0.0
        stop(heartbeat)


def test_a_coordinator_that_hangs_is_given_up_after_a_while(
    heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_module, "STALL_SECONDS", 1.5)
    given_up: Queue[float] = Queue()
    heartbeat._on_lost = given_up.put
    with FrameServer() as server:
        heartbeat.url = server.url
        heartbeat.start()
        wait_until("frames", lambda: server.frames)
        server.answers = False
        wait_until("time without an answer", lambda: heartbeat.unanswered_seconds() >= 1.0)
        assert len(server.requests) == 1, "it may only stand still"
        asked = max(frame.stamp for frame in server.frames if frame.wants_answer) / 1e9
        assert given_up.get(timeout=60) >= asked + 1.5, "of now: none answers since"
        wait_until("a new connection", lambda: len(server.requests) == 2)
        stop(heartbeat)


def test_a_heartbeat_says_how_late_its_thread_got_its_turn(
    heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, go_on = heartbeat._ready, threading.Event()

    def ready_late(seconds: float, woken: socket.socket) -> set[int]:
        """The pause between two heartbeats, after which the thread gets no core for a while."""
        found = ready(seconds, woken)
        if server.has_frames(3) and not server.has_frames(4):
            go_on.wait(0.7)
        return found

    monkeypatch.setattr(heartbeat, "_ready", ready_late)
    with FrameServer() as server:
        heartbeat.url = server.url
        heartbeat.start()
        wait_until("the heartbeat after that", lambda: server.has_frames(4))
        assert server.frames[3].delay >= 0.6
        stop(heartbeat)


def test_what_a_coordinator_takes_to_answer_is_no_lateness_of_the_thread(
    heartbeat: Heartbeat,
) -> None:
    with FrameServer() as server:
        server.accepts.clear()
        heartbeat.url = server.url
        heartbeat.start()
        wait_until("time without an answer", lambda: heartbeat.unanswered_seconds() > 6)
        server.accepts.set()
        wait_until("frames", lambda: server.has_frames(5))
        assert max(frame.delay for frame in server.frames) < 2
        stop(heartbeat)


def stop(heartbeat: Heartbeat) -> None:
    """End the thread, which waits for its next heartbeat."""
    heartbeat.stop()
    heartbeat.join(60)
    assert not heartbeat.is_alive()
