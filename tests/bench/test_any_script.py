"""The kills of bench/any_script.py, and a quick run of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.any_script import CASES, QUICK_CASE, SHAPES, drawn, main, summed_up
from bench.kill_course import Kill, KillCourse, Killed

RANK, WORKER = Kill("rank", 1, 0.5), Kill("worker", 0, 0.0)


def test_a_course_kills_in_order_and_measures_what_follows_each() -> None:
    struck: list[Kill] = []

    async def play() -> KillCourse:
        kills = asyncio.Queue[Kill]()
        course = KillCourse([RANK, WORKER], kills.put_nowait)
        begin_and_end_epochs(course, 0, 3)
        struck.append(await kills.get())
        course.read("rank 0: epoch 4: loss 0.1")  # it was on its way
        assert course.found == []
        assert course.waits() > 0
        begin_and_end_epochs(course, 3, 6)
        struck.append(await kills.get())
        begin_and_end_epochs(course, 6, 7)
        return course

    course = asyncio.run(asyncio.wait_for(play(), 10))
    assert struck == [RANK, WORKER]
    assert [(killed.what, killed.repeated) for killed in course.found] == [
        ("rank", 1),
        ("worker", 0),
    ]


def begin_and_end_epochs(course: KillCourse, first: int, last: int) -> None:
    course.read(f"rank 0: begins at epoch {first}")
    for epoch in range(first + 1, last + 1):
        course.read(f"rank 0: epoch {epoch}: loss 0.1")


def test_kills_are_drawn_once_for_all_and_are_of_both_kinds() -> None:
    assert drawn(5) == drawn(5)
    assert [kill.what for kill in drawn(5)] == ["rank", "worker", "rank", "worker", "rank"]


def test_a_kill_without_recovery_counts() -> None:
    values = summed_up([Killed("rank", 2.0, 1), Killed("worker", 3.0, 0)], 5)
    assert values["recovered"] == 0.4
    assert (values["rank_seconds"], values["worker_seconds"]) == (2.0, 3.0)
    assert values["repeated_epochs"] == 1


def test_each_case_has_its_script() -> None:
    assert {shape.script for shape in CASES.values()} | {"points.py"} == {
        path.name for path in SHAPES.glob("*.py")
    }


@pytest.mark.long
def test_a_quick_run_recovers_exactly_under_our_launcher(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--quick", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "any_script.json").read_text())["rows"]
    found = {(row["subject"], row["metric"]): row["median"] for row in rows}
    assert {row["case"] for row in rows} == {QUICK_CASE}
    assert found["regroup", "recovered"] == 1
    assert found["regroup", "difference"] == 0  # nothing is sharded anew: bit by bit
    assert ("torchrun", "recovered") in found
