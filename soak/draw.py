"""What a soak does, drawn from its seed. Equal arguments give equal plans, on every Python.

Kinds of faults and of jobs are dealt from decks. A deck has as many cards of a kind as the kind
weighs, and begins with one of each: so a plan with as many faults as there are kinds has each kind.
Only `Random.random` is used: its sequence is the one that Python promises to keep.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

FAULTS_AN_EPISODE = 10
TWO_JOBS = 0.25
"""Share of episodes with two jobs at once."""
PAUSE_SECONDS = (1.0, 12.0)


class Weighted(Protocol):
    """What is drawn more often, the higher its weight."""

    @property
    def weight(self) -> int:
        """At least 1."""


class Drawable(Weighted, Protocol):
    """A kind of fault."""

    @property
    def name(self) -> str:
        """Its name in plans and logs."""

    @property
    def seconds(self) -> tuple[float, float]:
        """Least and most time until it is undone."""


class Named(Weighted, Protocol):
    """A kind of job."""

    @property
    def name(self) -> str:
        """Its name in plans and logs."""


W = TypeVar("W", bound=Weighted)


@dataclass(frozen=True)
class Fault:
    """One fault of a plan."""

    number: int
    """From 1, over the whole plan."""
    kind: str
    job: int
    """Index of the job that it is meant for, within its episode."""
    choice: float
    """In [0, 1): which of the possible victims is hit."""
    pause: float
    """Seconds between the moment at which the job is whole again and this fault."""
    seconds: float
    """Time until it is undone; 0: it happens at once."""


@dataclass(frozen=True)
class Episode:
    """Jobs that run at the same time, and what is done to them."""

    jobs: tuple[str, ...]
    faults: tuple[Fault, ...]


def plan(
    seed: int, count: int, kinds: Sequence[Drawable], jobs: Sequence[Named]
) -> tuple[Episode, ...]:
    """Episodes with `count` faults in all. Raises ValueError where there is nothing to draw."""
    if count < 1 or not kinds or not jobs:
        raise ValueError(
            f"a plan needs at least one fault, one kind and one job: {count} faults, "
            f"{len(kinds)} kinds, {len(jobs)} jobs"
        )
    source = random.Random(seed)
    kinds_dealt, jobs_dealt = _dealt(source, kinds), _dealt(source, jobs)
    episodes: list[Episode] = []
    for first in range(1, count + 1, FAULTS_AN_EPISODE):
        last = min(count, first + FAULTS_AN_EPISODE - 1)
        episodes.append(_episode(source, range(first, last + 1), kinds_dealt, jobs_dealt))
    return tuple(episodes)


def _episode(
    source: random.Random, numbers: range, kinds: Iterator[Drawable], jobs: Iterator[Named]
) -> Episode:
    many = 2 if source.random() < TWO_JOBS else 1
    chosen = tuple(next(jobs).name for _ in range(many))
    return Episode(chosen, tuple(_fault(source, number, next(kinds), many) for number in numbers))


def _fault(source: random.Random, number: int, kind: Drawable, jobs: int) -> Fault:
    return Fault(
        number,
        kind.name,
        job=int(source.random() * jobs),
        choice=source.random(),
        pause=_between(source, PAUSE_SECONDS),
        seconds=_between(source, kind.seconds),
    )


def _dealt(source: random.Random, table: Sequence[W]) -> Iterator[W]:
    """The cards of one deck after another."""
    while True:
        yield from _shuffled(source, table)
        yield from _shuffled(source, [entry for entry in table for _ in range(entry.weight - 1)])


def _shuffled(source: random.Random, cards: Sequence[W]) -> Iterator[W]:
    left = list(cards)
    while left:
        yield left.pop(int(source.random() * len(left)))


def _between(source: random.Random, limits: tuple[float, float]) -> float:
    least, most = limits
    return round(least + (most - least) * source.random(), 2)
