"""What a soak does, drawn from its seed. Equal arguments give equal plans, on every Python.

Kinds of faults and of jobs are drawn from decks. A deck has as many cards of a kind as the kind
weighs, and begins with one of each. A fault that cannot strike a job is kept for the next one that
it can strike. So a plan that is an episode longer than the table has each kind.

Only `Random.random` is used: its sequence is the one that Python promises to keep.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

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

    @property
    def spares(self) -> tuple[str, ...]:
        """The kinds of jobs that it cannot strike."""


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
    for job in jobs:
        if all(job.name in kind.spares for kind in kinds):
            raise ValueError(
                f"no fault of {', '.join(kind.name for kind in kinds)} strikes {job.name}"
            )
    source = random.Random(seed)
    faults, trained = _Deck(source, kinds), _Deck(source, jobs)
    episodes: list[Episode] = []
    for first in range(1, count + 1, FAULTS_AN_EPISODE):
        last = min(count, first + FAULTS_AN_EPISODE - 1)
        episodes.append(_episode(source, range(first, last + 1), faults, trained))
    return tuple(episodes)


def _episode(
    source: random.Random, numbers: range, kinds: _Deck[Drawable], jobs: _Deck[Named]
) -> Episode:
    many = 2 if source.random() < TWO_JOBS else 1
    chosen = tuple(jobs.draw().name for _ in range(many))
    return Episode(chosen, tuple(_fault(source, number, kinds, chosen) for number in numbers))


def _fault(
    source: random.Random, number: int, kinds: _Deck[Drawable], jobs: Sequence[str]
) -> Fault:
    job = int(source.random() * len(jobs))
    kind = kinds.draw(lambda one: jobs[job] not in one.spares)
    return Fault(
        number,
        kind.name,
        job,
        choice=source.random(),
        pause=_between(source, PAUSE_SECONDS),
        seconds=_between(source, kind.seconds),
    )


class _Deck(Generic[W]):
    """Cards of a table's entries, which never end."""

    def __init__(self, source: random.Random, table: Sequence[W]) -> None:
        self._cards = _drawn(source, table)
        self._kept: list[W] = []

    def draw(self, suits: Callable[[W], bool] = lambda _: True) -> W:
        """The first card that suits; those before it are kept for later."""
        for place, card in enumerate(self._kept):
            if suits(card):
                return self._kept.pop(place)
        while not suits(card := next(self._cards)):
            self._kept.append(card)
        return card


def _drawn(source: random.Random, table: Sequence[W]) -> Iterator[W]:
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
