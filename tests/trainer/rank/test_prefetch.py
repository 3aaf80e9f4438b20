"""Values made ahead in a thread: the right ones, so many and no more, and errors come out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from regroup_trainer.errors import DataError
from regroup_trainer.rank.prefetch import Prefetch
from tests.support.waiting import wait_until


class Source:
    """Doubles positions and notes them; waits for permission where there is a gate."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def make(self, position: int) -> int:
        self.gate.wait(10)
        self.made.append(position)
        if position == 13:
            raise DataError("sample 13 is broken")
        return 2 * position


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    source.gate.set()


def prefetch_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("prefetch")}


def test_the_following_positions_are_made_before_they_are_asked_for(source: Source) -> None:
    with closing(Prefetch(source.make, stride=5, ahead=2)) as values:
        assert values.at(10) == 20
        wait_until("two positions ahead", lambda: len(source.made) == 3)
        assert source.made == [10, 15, 20]
        source.gate.clear()
        assert values.at(15) == 30  # needs nothing that is not there
        source.gate.set()


def test_no_more_is_made_than_was_agreed(source: Source) -> None:
    with closing(Prefetch(source.make, stride=1, ahead=2)) as values:
        assert [values.at(position) for position in (0, 1)] == [0, 2]
    assert source.made in ([0, 1, 2], [0, 1, 2, 3], [0, 1])


def test_any_position_may_be_asked_for(source: Source) -> None:
    with closing(Prefetch(source.make, stride=1, ahead=2)) as values:
        assert [values.at(position) for position in (0, 1, 100, 101, 3, 5)] == [
            0,
            2,
            200,
            202,
            6,
            10,
        ]


def test_errors_come_out_where_their_position_is_asked_for(source: Source) -> None:
    with closing(Prefetch(source.make, stride=1, ahead=2)) as values:
        assert values.at(12) == 24
        with pytest.raises(DataError, match="sample 13 is broken"):
            values.at(13)
        assert values.at(14) == 28


def test_the_thread_ends(source: Source) -> None:
    others = prefetch_threads()  # of earlier tests; they may end meanwhile
    values = Prefetch(source.make, stride=1, ahead=2)
    values.at(0)
    assert len(prefetch_threads() - others) == 1
    values.close()
    wait_until("its end", lambda: prefetch_threads() <= others)


def test_nobody_waits_for_the_end_of_a_value_that_is_not_needed(source: Source) -> None:
    values = Prefetch(source.make, stride=1, ahead=2)
    source.gate.clear()
    with pytest.raises(LookupError), closing(values):
        values.at(0, _refuse)
    assert source.made == [], "the value is still being made"


def test_who_waits_is_asked_again_and_again_and_informed_since_when(source: Source) -> None:
    asked = list[float]()

    def note(since: float) -> None:
        asked.append(since)
        if len(asked) == 3:
            source.gate.set()

    source.gate.clear()
    with closing(Prefetch(source.make, stride=1, ahead=2)) as values:
        assert values.at(4, note) == 8
    assert len(asked) >= 3
    assert len(set(asked)) == 1


def _refuse(_since: float) -> None:
    raise LookupError
