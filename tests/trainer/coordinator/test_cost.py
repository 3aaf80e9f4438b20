"""A message costs the same however many members there are: counted in lines of Python, so that the
speed of the machine does not matter.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest

from tests.support.large_job import Event, LargeJob, uid

FEW, MANY = 16, 256
ONCE = ("loss", "paces", "status", "half are lost before adoption", "all have ended")
"""These come once, or once a second, and concern all members."""


def lines_of(events: Sequence[Event]) -> int:
    """How many lines of Python run for each of these events. A loop counts each time."""
    count = 0

    def trace(_frame: FrameType, what: str, _argument: Any) -> Any:
        nonlocal count
        count += what == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for event in events:
            event()
    finally:
        sys.settrace(before)
    return count // len(events)


def cost(workers: int, ranks: int) -> dict[str, int]:
    """Lines for a message of each wave, measured in its second half."""
    found: dict[str, int] = {}
    for name, events in LargeJob(workers, ranks).waves():
        middle = 3 * len(events) // 4
        measured = events[middle : middle + 8]
        for event in events[:middle]:
            event()
        found[name] = lines_of(measured)
        for event in events[middle + len(measured) :]:
            event()
    return found


@pytest.mark.parametrize("ranks", [1, 8])
def test_a_message_costs_the_same_however_many_members_there_are(ranks: int) -> None:
    few, many = cost(FEW, ranks), cost(MANY, ranks)
    dear = {
        name: (lines, few[name])
        for name, lines in many.items()
        if name not in ONCE and lines > 1.5 * few[name] + 20
    }
    assert not dear


@pytest.mark.parametrize("ranks", [1, 8])
def test_what_concerns_all_members_costs_no_more_for_each_however_many_they_are(ranks: int) -> None:
    few, many = cost(FEW, ranks), cost(MANY, ranks)
    dear = {
        name: (many[name], few[name])
        for name in ONCE
        if many[name] > 1.5 * (MANY // FEW) * few[name]
    }
    assert not dear


def test_the_message_of_an_agent_costs_no_more_for_each_rank_however_many_they_are() -> None:
    few, many = (cost(4, ranks)["progress of an agent"] / ranks for ranks in (8, 64))
    assert many < few


def test_the_same_desired_once_more_makes_no_later_message_dearer() -> None:
    job = LargeJob(FEW)
    for number in range(FEW):
        job.hello(number)
    job.train()
    before = lines_of(job.progress())
    job.do(job.core.update_desired(job.desired(), job.now))
    assert lines_of(job.progress()) == before


def sentences_of_resizes(workers: int) -> list[str]:
    """Why a generation ends that half of the workers join, and one that they leave again."""
    job, half, reasons = LargeJob(workers), workers // 2, list[str]()
    for number in range(half):
        job.hello(number)
    until = job.now + 600.0
    while job.core.state.current is None:  # the others are waited for
        assert job.now < until
        job.now += 0.4
        for number in range(half):
            job.core.on_heartbeat(uid(number), job.now)
        job.tick()
    for number in range(half, workers):
        job.hello(number)
    for _ in range(2):
        for number, restored in job.restored():
            job.send(number, restored)
        for send in job.progress():
            send()
        if reasons:
            fewer = job.desired().model_copy(update={"revision": 2, "replicas": half})
            job.do(job.core.update_desired(fewer, job.now))
        current = job.core.state.current
        assert current is not None
        assert current.transition is not None
        reasons.append(current.transition.reason)
        for number, finished in job.finished():
            job.send(number, finished)
    return reasons


def test_a_begin_names_a_few_of_those_that_join_or_go_however_many_they_are() -> None:
    assert sentences_of_resizes(MANY) == [
        "gpt-w128-1, gpt-w129-1, gpt-w130-1 and 125 more join",
        "gpt-w128-1, gpt-w129-1, gpt-w130-1 and 125 more go",
    ]
