"""A message costs the same however many members there are: counted in lines of Python, so that the
speed of the machine does not matter.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest

from tests.support.large_job import Event, LargeJob

FEW, MANY = 16, 256
ONCE = ("loss", "status")
"""These come once, and concern all members."""


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
