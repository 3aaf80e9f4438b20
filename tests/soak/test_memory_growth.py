"""A leak differs from the rise of processes that are young."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping

import pytest

from soak import draw
from soak.kinds import FAULTS, JOBS
from soak.memory_growth import LEAST, Growth, Memory, leaks, memory_growth

KINDS = {
    fault.number: fault.kind for one in draw.plan(7, 500, FAULTS, JOBS) for fault in one.faults
}
"""The kinds of five hundred faults, by number."""
LEAK, NOISE = 5.0, 0.05
"""MB per 100 faults, and MB by which a look at a size is off."""


def lives(
    length: int, leak: float = 0.0, rise: Callable[[int], float] = lambda _age: 0.0
) -> Iterator[Memory]:
    """One process after another, which live through so many faults. Each leaks, and at each age has
    risen by so much.
    """
    source = random.Random(1)
    for number in KINDS:
        first, age = number - (number - 1) % length, (number - 1) % length
        size = 60 + leak * age / 100 + rise(age) + source.gauss(0, NOISE)
        yield Memory("worker", f"from fault {first}", number, size)


def measured(samples: Iterator[Memory]) -> float:
    """MB per 100 faults."""
    found = memory_growth(samples, KINDS)["worker"].mebibytes
    assert found is not None
    return found


@pytest.mark.parametrize("length", [15, 60, 500])
def test_a_leak_is_found_in_long_lives_and_in_short_ones(length: int) -> None:
    assert measured(lives(length)) == pytest.approx(0, abs=2)
    assert measured(lives(length, LEAK)) == pytest.approx(LEAK, abs=2)


def with_firsts(samples: Iterator[Memory], kinds: Mapping[int, str]) -> Iterator[Memory]:
    """Each process is larger by 0.25 MB for each kind of fault that it has lived through."""
    lived: dict[str, set[str]] = {}
    for one in samples:
        known = lived.setdefault(one.process, set())
        known.add(kinds[one.fault])
        yield one._replace(size=one.size + 0.25 * len(known))


@pytest.mark.parametrize("length", [15, 60, 500])
def test_what_a_process_needs_for_each_new_kind_of_fault_is_no_leak(length: int) -> None:
    assert measured(with_firsts(lives(length), KINDS)) == pytest.approx(0, abs=2)
    assert measured(with_firsts(lives(length, LEAK), KINDS)) == pytest.approx(LEAK, abs=2)


@pytest.mark.parametrize(
    "rise",
    [
        lambda age: 3 * (1 - math.exp(-age / 4)),
        lambda age: 3 * min(age, 15) / 15,
        lambda age: float((age >= 1) + (age >= 5) + (age >= 12)),
    ],
    ids=["an exponential", "a line", "steps"],
)
def test_a_rise_that_ends_within_fifteen_faults_is_no_leak_of_a_process_that_lives_long(
    rise: Callable[[int], float],
) -> None:
    assert measured(lives(100, 0, rise)) < LEAK / 2
    assert measured(lives(100, LEAK, rise)) == pytest.approx(LEAK, abs=LEAK / 2)


def test_a_start_is_no_leak_of_a_process_that_lives_shortly() -> None:
    starting = (30.0, 40.0, 48.0, 50.0)
    assert measured(lives(15, 0, lambda age: starting[min(age, 3)])) == pytest.approx(0, abs=2)


def test_a_leak_is_a_finding_when_noise_does_not_explain_it() -> None:
    def found(growth: Growth) -> list[str]:
        return list(leaks({"worker": growth}))

    even = Growth(count=50, total=3.0, squares=50 * 0.06**2)
    assert found(even) == [
        "memory of worker: 6.0 MB more per 100 faults (standard error 0.0), where 5 MB are allowed"
    ]
    assert not found(Growth(count=50, total=3.0, squares=50 * 0.3**2)), "6 by chance"
    assert not found(Growth(count=50, total=2.4, squares=50 * 0.05**2)), "4.8"
    assert not found(Growth(count=LEAST - 1, total=30.0, squares=30.0)), "too few to know"


def test_sums_of_two_runs_are_those_of_one() -> None:
    samples = list(lives(15, LEAK))
    halves = [
        memory_growth([one for one in samples if (one.fault - 1) % 30 // 15 == half], KINDS)[
            "worker"
        ]
        for half in (0, 1)
    ]
    whole = memory_growth(samples, KINDS)["worker"]
    both = halves[0] + halves[1]
    assert both.count == whole.count
    assert both.mebibytes == pytest.approx(whole.mebibytes)
