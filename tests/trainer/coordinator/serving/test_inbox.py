"""The order in which waiting messages are handled, and what is not handled at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from regroup_trainer.coordinator.serving.inbox import (
    MOST_CHARACTERS,
    MOST_MESSAGES,
    URGENT_IN_A_ROW,
    Inbox,
)
from regroup_trainer.protocol.agent_messages import Leaving, RankExit, Reports
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.rank_messages import Busy, CheckpointFailed, Progress

FIRST = GenerationNumber(1, 1)


def progress(step: int, ranks: int = 1) -> str:
    return progress_of(step, range(ranks))


def progress_of(step: int, ranks: Iterable[int]) -> str:
    reports = (Progress(generation=FIRST, rank=n, step=step, time=1.0) for n in ranks)
    return Reports(reports=tuple(reports)).model_dump_json()


def reports(*given: Any) -> str:
    return Reports(reports=given).model_dump_json()


def ended(message: str = "") -> RankExit:
    return RankExit(generation=FIRST, rank=0, exit_code=1, cause="error", message=message)


def failed(error: str) -> CheckpointFailed:
    return CheckpointFailed(generation=FIRST, rank=0, step=1, stage="write", error=error)


BUSY = reports(Busy(generation=FIRST, rank=0, doing="saves", step=1))


def all_of(inbox: Inbox[str]) -> list[tuple[str, str]]:
    taken = []
    while inbox:
        taken.append(inbox.take())
    return taken


def test_who_reports_an_end_comes_first_with_all_that_came_before_it() -> None:
    inbox = Inbox[str]()
    for name in ("a", "b", "c"):
        inbox.add(name, BUSY, 1.0)
        inbox.add(name, progress(1), 1.0)
    inbox.add("c", reports(ended()), 1.0)
    inbox.add("b", Leaving(reason="SIGTERM").model_dump_json(), 1.0)
    order = [name for name, _ in all_of(inbox)]
    assert sorted(order[:6]) == ["b", "b", "b", "c", "c", "c"]
    assert order[6:] == ["a", "a"]


def test_the_messages_of_a_connection_keep_their_order_and_connections_take_turns() -> None:
    inbox = Inbox[str]()
    texts = [BUSY, progress(1), BUSY, progress(2)]
    for name in ("a", "b"):
        for text in texts:
            inbox.add(name, text, 1.0)
    taken = all_of(inbox)
    assert [name for name, _ in taken] == ["a", "b"] * 4
    assert [text for name, text in taken if name == "b"] == texts


def test_only_the_newest_progress_of_a_connection_is_handled() -> None:
    inbox = Inbox[str]()
    for step in range(100):
        inbox.add("a", progress(step, ranks=8), 1.0)
        inbox.add("b", progress(step), 1.0)
    assert all_of(inbox) == [("a", progress(99, ranks=8)), ("b", progress(99))]


@pytest.mark.parametrize(("older", "newer"), [([0], range(1, 8)), ([1, 2], [0, 1]), ([1], [11])])
def test_progress_of_other_ranks_overtakes_nothing(older: list[int], newer: Iterable[int]) -> None:
    """Where steps are slow, that of rank 0 comes first, and that of the others a second later."""
    inbox = Inbox[str]()
    texts = [progress_of(1, older), progress_of(1, newer)]
    for text in texts:
        inbox.add("a", text, 1.0)
    assert [text for _, text in all_of(inbox)] == texts


def test_progress_of_fewer_ranks_or_with_other_reports_overtakes_nothing() -> None:
    inbox = Inbox[str]()
    one = Progress(generation=FIRST, rank=0, step=5, time=1.0)
    texts = [progress(1, ranks=2), progress(2), reports(one, failed("")), progress(6), BUSY]
    for text in texts:
        inbox.add("a", text, 1.0)
    assert [text for _, text in all_of(inbox)] == texts


def test_what_somebody_quotes_in_a_text_is_not_urgent_and_no_progress() -> None:
    inbox = Inbox[str]()
    inbox.add("a", BUSY, 1.0)
    inbox.add("b", reports(failed(f"{reports(ended())} {progress(1)}")), 1.0)
    inbox.add("b", progress(2), 1.0)
    assert [name for name, _ in all_of(inbox)] == ["a", "b", "b"]


def test_a_flood_of_urgent_messages_holds_nobody_up_for_ever() -> None:
    inbox = Inbox[str]()
    inbox.add("a", progress(1), 1.0)
    inbox.add("b", reports(ended()), 1.0)
    order = ""
    while "a" not in order:
        inbox.add("b", reports(ended()), 1.0)
        order += inbox.take()[0]
    assert order == URGENT_IN_A_ROW * "b" + "a"


def test_what_waits_of_a_connection_is_bounded() -> None:
    inbox, count = Inbox[str](), 0
    while not inbox.is_full("a"):
        inbox.add("a", BUSY, 1.0)
        count += 1
    assert count == MOST_MESSAGES
    assert not inbox.is_full("b")
    inbox.take()
    assert not inbox.is_full("a")
    while not inbox.is_full("b"):
        inbox.add("b", reports(ended("x" * 4000)), 1.0)
        count += 1
    assert count - MOST_MESSAGES <= MOST_CHARACTERS / 4000 + 1


def test_what_is_left_of_a_connection_can_be_taken_at_its_end() -> None:
    inbox = Inbox[str]()
    inbox.add("a", BUSY, 1.0)
    inbox.add("b", reports(ended()), 1.0)
    inbox.add("b", progress(1), 1.0)
    assert [inbox.take_of("b"), inbox.take_of("b"), inbox.take_of("b")] == [
        reports(ended()),
        progress(1),
        None,
    ]
    assert all_of(inbox) == [("a", BUSY)]


def test_the_oldest_message_that_waits_says_until_when_all_are_handled() -> None:
    inbox = Inbox[str]()
    assert inbox.waits_since() is None
    inbox.add("a", progress(1), 1.0)
    inbox.add("b", BUSY, 2.0)
    inbox.add("c", reports(ended()), 3.0)
    inbox.add("a", progress(2), 4.0)  # it overtakes the first
    assert inbox.waits_since() == 2.0
    assert inbox.take()[0] == "c"
    assert inbox.waits_since() == 2.0
    assert inbox.take_of("b") == BUSY
    assert inbox.waits_since() == 4.0
    inbox.take()
    assert inbox.waits_since() is None
