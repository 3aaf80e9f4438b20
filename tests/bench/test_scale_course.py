"""The events of a benchmark of scale, with agents that answer what a test wants."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from bench.scale import scale_course
from bench.scale.__main__ import CASES, goals, plan
from bench.scale.players import Answer, Players
from bench.scale.scale_course import ScaleCourse, ScaleSubject
from bench.scale.settings import EVENTS, GOALS, UNITS, ScaleSize

ALL = Answer(begun=10.0, done=12.5, arrived=3, of=3, generation=(1, 2))
SOME = replace(ALL, done=None, arrived=2)
GONE = replace(ALL, arrived=0)
"""Instead of this answer, the simulated agents end."""
SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")


class PlayedAgents(Players):
    """Agents without processes."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        super().__init__([], [])
        self._answers = answers

    def ask(self, do: str, seconds: float = 0.0, **more: int) -> Answer:
        """All arrive, unless the test says otherwise."""
        if (answer := self._answers.get(do, ALL)) is GONE:
            raise RuntimeError("the simulated agents ended with 1")
        return answer


class Sleeper(ScaleSubject):
    """A process that does nothing."""

    def __init__(self, folder: Path, answers: Mapping[str, Answer], **more: Any) -> None:
        self.lines: list[str] = []
        self.whole, self.is_stuck = more.pop("whole", True), more.pop("is_stuck", False)
        super().__init__(folder, ScaleSize(3, steady_seconds=0.05), self.lines.append)
        self._answers = answers
        self.started: list[Popen[bytes]] = []

    def start(self) -> Popen[bytes]:
        """Start it."""
        self.started.append(Popen(SLEEPS))
        return self.started[-1]

    def players(self) -> Players:
        """Its agents."""
        return PlayedAgents(self._answers)

    async def answers(self) -> bool:
        """It never has to be waited for."""
        return True

    async def ask_status(self) -> bool:
        """It has one, of which the test may have no answer come."""
        if self.is_stuck:
            await asyncio.Event().wait()
        return True

    async def has_taken_over(self, _former: Answer) -> bool:
        """What the test wants."""
        return bool(self.whole)


def measured(subject: Sleeper) -> dict[str, float | None]:
    """The figures; none of the processes is left."""
    course = ScaleCourse(subject)
    asyncio.run(course.run())
    assert all(process.poll() is not None for process in subject.started)
    return course.found


def test_a_whole_course_has_every_figure_and_a_second_process(tmp_path: Path) -> None:
    state = replace(ALL, lag=0.01, beats=7, step=4)
    subject = Sleeper(tmp_path, {"state": state, "lose": replace(ALL, received=3_000_000)})
    found = measured(subject)
    assert set(found) == set(UNITS)
    assert found["status_seconds"] is not None
    assert found["form_seconds"] == found["recovery_seconds"] == 2.5
    assert found["megabytes_sent"] == 3.0
    assert found["needless_generations"] == 1
    assert found["formed"] == found["recovered"] == found["resynced"] == 1.0
    assert subject.term == len(subject.started) == 2
    assert not subject.lines


def test_agents_that_do_not_come_are_a_result_and_end_the_course(tmp_path: Path) -> None:
    subject = Sleeper(tmp_path, {"form": SOME})
    assert measured(subject) == {"formed": 0.0, "form_seconds": None}
    assert subject.lines == ["formed: none within 120 s; 2 of 3 agents came (generation 1.2)"]


def test_a_recovery_that_does_not_come_still_lets_the_successor_be_measured(
    tmp_path: Path,
) -> None:
    found = measured(Sleeper(tmp_path, {"lose": SOME}))
    assert found["recovered"] == 0.0
    assert found["recovery_seconds"] is found["megabytes_sent"] is None
    assert found["resynced"] == 1.0


@pytest.mark.parametrize(
    ("do", "events"),
    [
        ("state", {"formed": 0.0}),
        ("form", {"formed": 0.0}),
        ("lose", {"formed": 1.0, "recovered": 0.0}),
        ("resync", {"formed": 1.0, "recovered": 1.0, "resynced": 0.0}),
    ],
)
def test_simulated_agents_that_end_are_a_result_of_their_run_alone(
    tmp_path: Path, do: str, events: dict[str, float]
) -> None:
    subject = Sleeper(tmp_path, {do: GONE})
    found = measured(subject)
    assert {name: found[name] for name in EVENTS if name in found} == events
    assert subject.lines == ["the simulated agents ended with 1"]


def test_ours_alone_has_goals_and_for_the_large_sizes() -> None:
    assert all(set(one) <= set(UNITS) for one in GOALS.values())
    assert [bool(goals(case, "regroup")) for case in CASES] == [False, False, True, True]
    assert not goals(CASES[-1], "torchft")


def test_a_status_that_does_not_come_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale_course, "ANSWER_SECONDS", 0.05)
    subject = Sleeper(tmp_path, {}, is_stuck=True)
    found = measured(subject)
    assert found["status_seconds"] is None
    assert found["resynced"] == 1.0
    assert subject.lines[0].startswith("status: no answer within")


def test_a_successor_that_has_lost_somebody_has_not_resynced(tmp_path: Path) -> None:
    found = measured(Sleeper(tmp_path, {}, whole=False))
    assert found["resynced"] == 0.0
    assert found["resync_seconds"] is None


def test_a_process_that_takes_too_much_memory_ends_its_row_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale_course, "MOST_MIB", 0)
    monkeypatch.setattr(scale_course, "GUARD_SECONDS", 0.001)
    subject = Sleeper(tmp_path, {})
    assert "rss_peak_mb" not in measured(subject)
    assert "is gone" in subject.lines[-1]


def test_a_case_says_how_many_agents_there_are() -> None:
    assert [ScaleSize.of(case).agents for case in CASES] == [16, 128, 1024, 4096]
    assert ScaleSize.of("agents-16-quick").steady_seconds < ScaleSize.of("agents-16").steady_seconds
    assert ScaleSize.of(plan(quick=True).cases[0]).ranks == 8


def test_several_processes_answer_as_one() -> None:
    late = replace(ALL, begun=10.5, done=14.0, arrived=2, of=2, lag=0.5, generation=(1, 1))
    both = Answer.of_all([ALL, late])
    assert (both.begun, both.done, both.seconds) == (10.0, 14.0, 4.0)
    assert (both.arrived, both.of, both.lag, both.generation) == (5, 5, 0.5, (1, 2))
    assert Answer.of_all([ALL, SOME]).seconds is None


def test_an_answer_is_a_line_of_json() -> None:
    line = b'{"begun": 1.5, "done": null, "arrived": 2, "of": 3, "generation": [1, 7]}\n'
    assert Answer.read(line) == Answer(1.5, None, 2, 3, generation=(1, 7))


def test_agents_that_end_between_two_commands_end_the_run_with_their_exit_code() -> None:
    ends = (sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(9)")
    with Players(ends, [{}]) as players:
        players._processes[0].wait()
        with pytest.raises(RuntimeError, match="ended with 9"):
            players.ask("state")
