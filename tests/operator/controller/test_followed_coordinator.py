"""What is kept of a coordinator's answers."""

from __future__ import annotations

import pytest

from regroup_operator.controller.followed_coordinator import (
    AnswerRoom,
    FollowedCoordinator,
    RoundCosts,
    Target,
)
from tests.support.operator_simulation import make_coordinator_status, make_event

FAILED = "CheckpointFailed"


def kept(follower: FollowedCoordinator) -> list[int]:
    """Sequences of the events in memory."""
    assert follower.status is not None
    return [event.sequence for event in follower.status.events]


def test_events_that_were_emitted_take_no_memory_and_are_no_news() -> None:
    follower = FollowedCoordinator(Target("uid", "198.19.0.9", 1, "secret"), emitted=3)
    events = tuple(make_event(n) for n in range(1, 51))
    assert follower.answered(make_coordinator_status(events=events), 1.0)
    assert kept(follower) == list(range(4, 51))
    follower.note_emitted(50)
    follower.note_emitted(40)
    assert not kept(follower)
    assert not follower.answered(make_coordinator_status(events=events), 2.0)
    assert follower.answered(make_coordinator_status(events=(*events, make_event(51))), 3.0)
    assert kept(follower) == [51]


def test_that_the_newest_save_failed_stays_known() -> None:
    follower = FollowedCoordinator(Target("uid", "198.19.0.9", 1, "secret"))
    events = (make_event(1, FAILED), make_event(2, FAILED), make_event(3))
    follower.answered(make_coordinator_status(events=events), 1.0)
    follower.note_emitted(3)
    assert kept(follower) == [2]


MIB = 1024 * 1024


def test_answers_of_a_namespace_take_no_more_than_they_leave_free() -> None:
    room = AnswerRoom(64 * MIB)
    taken = [room.take(("a", f"job{number}"), 8 * MIB) for number in range(6)]
    assert taken == [True] * 4 + [False] * 2
    assert room.take(("b", "gpt"), 16 * MIB)
    assert not room.take(("b", "other"), MIB)


def test_an_answer_takes_the_room_of_the_one_before_it_whatever_others_take() -> None:
    room = AnswerRoom(64 * MIB)
    assert room.take(("a", "gpt"), 32 * MIB)
    assert room.take(("b", "gpt"), 16 * MIB)
    assert room.take(("a", "gpt"), 32 * MIB)
    assert not room.take(("a", "gpt"), 33 * MIB)
    assert room.take(("a", "gpt"), 4 * MIB)
    assert room.take(("b", "other"), 4 * MIB)


def test_a_job_that_is_not_followed_any_more_leaves_its_room_to_others() -> None:
    room = AnswerRoom(64 * MIB)
    for number in range(1000):
        key = ("a", f"job{number}")
        assert room.take(key, 30 * MIB)
        room.release(key)
        room.release(key)


def test_rounds_that_cost_more_than_their_share_begin_later() -> None:
    """A tenth of a second is free, and a hundredth of the time."""
    rounds = RoundCosts()
    for now in range(3):
        assert rounds.pause(0.1, 0.01, float(now)) == 0.0
        rounds.charge(0.04, 0.01, float(now))
    assert rounds.pause(0.1, 0.01, 2.0) == 0.0
    rounds.charge(0.04, 0.01, 2.0)
    assert rounds.pause(0.1, 0.01, 2.0) == pytest.approx(4.0)
    assert rounds.pause(0.1, 0.01, 6.1) == 0.0
    assert rounds.pause(0.0, 0.01, 1000.0) == 0.0
