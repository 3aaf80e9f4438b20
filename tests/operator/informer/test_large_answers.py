"""Large answers are decoded one at a time, and leave most of the thread to others."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from dataclasses import dataclass

import pytest

from regroup_operator.informer import large_answers
from regroup_operator.informer.large_answers import LargeAnswers
from regroup_operator.observe.bounded_json import UndecodableError, decode
from tests.support.least_time import least_cpu_seconds

VARIABLES = [{"name": f"A{number}", "value": ""} for number in range(80_000)]
LARGE = json.dumps({"metadata": {}, "spec": {"env": VARIABLES}}).encode()
"""2.7 MB."""
TRIES = 5
"""The machine may stop a test for longer than anything that it measures."""


@dataclass(frozen=True)
class Beside:
    """A loop beside decodings: seconds."""

    longest_stall: float
    whole: float


async def measure(decodings: int) -> Beside:
    """Tick while so many answers are decoded."""
    answers, stalls = LargeAnswers(), [0.0]

    async def tick() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.001)
            stalls.append(time.monotonic() - last)
            last = time.monotonic()

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    began = time.monotonic()
    await asyncio.gather(*(answers.decode(str(each % 3), LARGE) for each in range(decodings)))
    whole = time.monotonic() - began
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    return Beside(max(stalls), whole)


async def test_eight_decodings_stop_the_loop_no_longer_than_one_and_take_a_third_of_it() -> None:
    """Eight threads that decoded at once stopped it until nearly all had ended."""
    alone = least_cpu_seconds(lambda: decode(LARGE), enough=0)
    beside = await measure(8)
    for _ in range(TRIES - 1):
        if beside.longest_stall < beside.whole / 4:
            break
        beside = await measure(8)
    assert beside.longest_stall < beside.whole / 4
    assert beside.whole > 0.8 * alone * (8 + 7 * large_answers.REST)


async def test_a_namespace_that_has_many_lets_others_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[bytes] = []
    monkeypatch.setattr(large_answers, "decode", begun.append)
    answers = LargeAnswers()
    many = [answers.decode("a", b"a%d" % each) for each in range(5)]
    await asyncio.gather(*many, answers.decode("b", b"b"))
    assert begun == [b"a0", b"a1", b"b", b"a2", b"a3", b"a4"]


async def test_what_cannot_be_decoded_is_said_and_the_next_one_is_decoded() -> None:
    answers = LargeAnswers()
    with pytest.raises(UndecodableError, match="no JSON"):
        await answers.decode("a", b"{")
    assert await answers.decode("a", b"{}") == {}
    assert gc.isenabled()
