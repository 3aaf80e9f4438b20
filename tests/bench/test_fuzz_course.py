"""How the waves of a fuzz follow each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from bench.fuzz.fuzz_course import FuzzCourse, FuzzOutcome
from bench.fuzz.size import FuzzSize


class Parts:
    """Operator, hostile and ordinary tenant, all of which do at once what they are asked for."""

    def __init__(self, exit_code: int = 0) -> None:
        self.outcome = FuzzOutcome()
        self.did: list[int | str] = []
        self.requests = self.seconds = 1.0
        self._exit_code = exit_code

    def stop(self) -> int:
        self.did.append("stop")
        return self._exit_code

    def start(self) -> None:
        self.did.append("start")

    @contextmanager
    def at_work(self, count: int) -> Iterator[None]:
        self.did.append(count)
        self.outcome.findings.jobs += count
        yield

    def is_answered(self) -> bool:
        return True

    def await_judgement(self) -> None:
        self.did.append("judge")

    def delete_all(self) -> None:
        self.did.append("delete")

    def sample(self, enough: Callable[[int], bool]) -> list[float]:
        found: list[float] = []
        while not enough(len(found)):
            found += [1.0, 2.0]
        return found

    def run(self, **size: Any) -> list[int | str]:
        part = cast("Any", self)
        sized = FuzzSize(seed=1, templates=0, samples=2, **size)
        FuzzCourse(part, part, part, sized, self.outcome).take_turns(lambda _: None)
        return self.did


def test_once_all_jobs_of_a_larger_wave_are_there_while_the_operator_starts_again() -> None:
    parts = Parts()
    small = [100, "judge", "delete"]
    assert parts.run(jobs=2000) == [
        *small * 5,
        *[1000, "stop", "start", "judge", "delete"],
        *small * 5,
    ]
    assert len(parts.outcome.quiet) == len(parts.outcome.beside) == 22
    assert parts.outcome.metrics()["restart_seconds"] is not None


def test_a_small_fuzz_starts_the_operator_once() -> None:
    parts = Parts()
    assert parts.run(jobs=150) == [100, "judge", "delete", 50, "judge", "delete"]
    assert parts.outcome.metrics()["restart_seconds"] is None


@pytest.mark.parametrize("last", [0, 2])
def test_an_operator_that_ends_badly_before_its_restart_is_a_problem(last: int) -> None:
    parts = Parts(exit_code=1)
    parts.run(jobs=1000)
    parts.outcome.note_end(last)
    assert parts.outcome.problems() == ["the operator ended with 1"]


def test_no_wave_begins_when_the_time_is_over() -> None:
    assert Parts().run(jobs=2000, seconds=-1.0) == []
