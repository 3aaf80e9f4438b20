"""Numbers in reserve: how many, in which order, and how often a volume that refuses is asked."""

from __future__ import annotations

import pytest

from regroup_trainer.coordinator.reserved_numbers import (
    LONGEST_RETRY_SECONDS,
    NUMBERS_AHEAD,
    ReservedNumbers,
)
from regroup_trainer.protocol.generation import GenerationNumber


def number(n: int) -> GenerationNumber:
    return GenerationNumber(2, n)


def filled() -> ReservedNumbers:
    """As many numbers in reserve as there shall be."""
    numbers = ReservedNumbers(2)
    while (wanted := numbers.next_request(0.0)) is not None:
        numbers.on_granted(wanted)
    return numbers


def test_several_numbers_are_kept_and_used_in_order() -> None:
    numbers = filled()
    assert numbers.ahead == NUMBERS_AHEAD
    used = []
    for _ in range(3):
        used.append(numbers.reserved)
        numbers.use()
    assert used == [number(1), number(2), number(3)]
    assert numbers.next_request(0.0) == number(NUMBERS_AHEAD + 1)


def test_the_reserve_lasts_while_the_volume_refuses() -> None:
    numbers = filled()
    numbers.use()
    assert numbers.next_request(0.0) is not None
    numbers.on_refused("No space left on device", 0.0)
    assert numbers.refusal
    assert numbers.reserved == number(2)


def test_a_volume_that_refuses_is_asked_more_and_more_seldom_until_it_grants_again() -> None:
    numbers, now, pauses = ReservedNumbers(2), 0.0, []
    for _ in range(8):
        assert numbers.next_request(now) == number(1)
        numbers.on_refused("No space left on device", now)
        start = now
        while numbers.next_request(now + 0.5) is None:
            now += 0.5
        pauses.append(now + 0.5 - start)
        numbers.on_refused("No space left on device", now)
        now += LONGEST_RETRY_SECONDS
    assert pauses[0] == 1.0
    assert pauses[-1] == LONGEST_RETRY_SECONDS
    numbers.next_request(now)
    numbers.on_granted(number(1))
    assert numbers.refusal == ""
    assert numbers.next_request(now) == number(2)


def test_a_volume_that_is_unresponsive_is_not_asked_again_and_its_late_answer_counts() -> None:
    numbers = ReservedNumbers(2)
    numbers.next_request(0.0)
    numbers.on_unanswered("it has not answered for 5 s")
    assert numbers.next_request(100.0) is None
    assert numbers.refusal
    numbers.on_granted(number(1))
    assert (numbers.reserved, numbers.refusal) == (number(1), "")


def test_numbers_up_to_one_that_an_agent_has_seen_are_left_out() -> None:
    numbers = filled()
    numbers.on_seen(number(3))
    assert numbers.reserved == number(4)
    numbers.on_seen(number(100))
    assert numbers.ahead == 0
    assert numbers.next_request(0.0) == number(101)
    numbers.on_seen(GenerationNumber(1, 500))
    numbers.on_granted(number(101))
    assert numbers.reserved == number(101)


def test_numbers_that_are_doubted_wait_for_an_answer_of_the_volume() -> None:
    numbers = filled()
    numbers.doubt()
    assert numbers.reserved is None
    wanted = numbers.next_request(0.0)
    assert wanted == number(NUMBERS_AHEAD + 1)
    numbers.on_granted(wanted)
    assert numbers.reserved == number(1)


def test_an_answer_to_what_was_asked_before_the_doubt_does_not_end_it() -> None:
    numbers = filled()
    numbers.use()
    asked = numbers.next_request(0.0)
    assert asked is not None
    numbers.doubt()
    numbers.on_granted(asked)
    assert numbers.reserved is None
    again = numbers.next_request(0.0)
    assert again is not None
    numbers.on_granted(again)
    assert numbers.reserved == number(2)


def test_a_volume_that_refused_a_full_reserve_is_asked_until_it_grants_again() -> None:
    numbers = filled()
    numbers.doubt()
    assert numbers.next_request(0.0) is not None
    numbers.on_refused("Read-only file system", 0.0)
    wanted = numbers.next_request(LONGEST_RETRY_SECONDS)
    assert wanted is not None
    numbers.on_granted(wanted)
    assert numbers.refusal == ""
    assert numbers.next_request(LONGEST_RETRY_SECONDS) is None


@pytest.mark.parametrize("is_unanswered", [False, True])
def test_where_the_volume_gives_no_answer_doubted_numbers_have_to_do(is_unanswered: bool) -> None:
    numbers = filled()
    numbers.doubt()
    assert numbers.next_request(0.0) is not None
    if is_unanswered:
        numbers.on_unanswered("no answer")
    else:
        numbers.on_refused("No space left on device", 0.0)
    assert numbers.reserved == number(1)
