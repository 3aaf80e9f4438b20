"""The figures on the pages about benchmarks are those of the files of results, as far as these have
them: what is said of a later run without a file is not compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench import coordinator_core, heartbeat_cost, long_history

ROOT = Path(__file__).resolve().parents[1]
PAGE, FIRST, LIMITS = "docs/concepts/benchmarks.md", "README.md", "docs/tasks/limits.md"
Row = Mapping[str, Any]

TABLES = {
    (PAGE, "| fault | Regroup DDP | Regroup FSDP2 |"): "recovery",
    (FIRST, "| fault | Regroup DDP | Regroup FSDP2 |"): "recovery",
    (PAGE, "| | Regroup, DDP | tuned torchrun |"): "goodput",
    (PAGE, "| | |\n|---|---|\n| the survivor"): "survivor",
    (PAGE, "| script | fault |"): "any_script",
    (LIMITS, "| workers x ranks of each | memory |"): "coordinator_size",
    (PAGE, "| | 16 agents |"): "scale",
    (PAGE, "| | Regroup | torchft's lighthouse |"): "scale",
    (PAGE, "| | Regroup | Trainer v2 with JobSet | script |"): "operator",
    (PAGE, "| all run | Regroup | Trainer v2 with JobSet | script |"): "operator",
    (PAGE, "| clients as they come | Regroup |"): "operator",
    (PAGE, "| with 1,000 jobs | Regroup |"): "operator",
    (PAGE, "| | ours | beside it |"): "command_line",
    (PAGE, "| Regroup | accelerate | Lightning |"): "overhead",
    (PAGE, "| Regroup | grain |"): "data_resume",
    (PAGE, "| Regroup | Regroup, `deterministic: exact` |"): "elastic_loss",
    (PAGE, "| Regroup | xz |"): "learning",
    (PAGE, "| | what it costs the training |"): "checkpoint",
    (PAGE, "| | beside a bare DDP script |"): "throughput",
    (PAGE, "| beside a bare DDP script |"): "protection",
    (PAGE, "| Regroup | bare compiled loop |"): "gpu",
}
"""A page and the beginning of a table on it -> the file of its results."""
TITLED = re.compile(r"^\| (?:script|fault|workers|all run|clients|with|\|)")
"""A table whose first column has no figures."""
OTHER = re.compile(r"\w+ of \d+|more than \d+ GiB|\(\d+ (?:x|% slower)\)")
"""Numbers that are none of a file."""
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
ORDER = {1: ("median",), 2: ("median", "max"), 3: ("median", "min", "max")}
"""So many numbers of one row -> which of its figures they are."""


@cache
def results(name: str) -> Any:
    return json.loads((ROOT / f"bench/results/{name}.json").read_text())


def cells(page: str, beginning: str) -> list[str]:
    """Those of a table that may have figures."""
    text = (ROOT / page).read_text()
    assert text.count(f"\n{beginning}") == 1, f"{page} has not one table {beginning!r}"
    table = beginning + text.partition(f"\n{beginning}")[2].partition("\n\n")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return [cell for line in lines for cell in line[bool(TITLED.match(beginning)) :]]


def figures(cell: str) -> list[tuple[list[str], int]]:
    """The numbers of each row of results that a cell shows, and what a second is in it."""
    parts = re.split(r"[;,] (?![^()]*\))", OTHER.sub("", cell))
    found = [(NUMBER.findall(part), 1000 if " ms" in part else 1) for part in parts]
    return [one for one in found if one[0]]


def agrees(shown: str, value: float) -> bool:
    """Whether a number on a page is this value, rounded."""
    digits, _, exponent = shown.replace(",", "").partition("e")
    decimals = len(digits.partition(".")[2]) - int(exponent or 0)
    if "," in shown:  # thousands
        decimals = len(digits.rstrip("0")) - len(digits)
    return abs(float(f"{digits}e{exponent or 0}") - value) <= 0.5001 * 10.0**-decimals


def shows(numbers: list[str], row: Row, second: int) -> bool:
    factor = second if row["unit"] == "s" else 1
    values = [float(row[figure]) * factor for figure in ORDER[len(numbers)]]
    return all(map(agrees, numbers, values))


@pytest.mark.parametrize(("page", "beginning"), TABLES)
def test_each_figure_of_a_table_is_one_of_its_file(page: str, beginning: str) -> None:
    rows = results(TABLES[page, beginning])["rows"]
    shown = [(cell, *one) for cell in cells(page, beginning) for one in figures(cell)]
    assert len(shown) >= 2
    wrong = [
        cell
        for cell, numbers, second in shown
        if not any(shows(numbers, row, second) for row in rows)
    ]
    assert not wrong


def test_the_page_dates_each_file() -> None:
    names = {path.stem for path in (ROOT / "bench/results").glob("*.json")}
    recorded = {name: results(name) for name in names if "date" in results(name)}
    shown = cells(PAGE, "| benchmark | date | version |")
    assert list(zip(shown[::3], shown[1::3], shown[2::3], strict=True)) == [
        (f"`{name}`", one["date"][:10], one["versions"].get("regroup", "not recorded"))
        for name, one in sorted(recorded.items())
    ]


@pytest.mark.parametrize("bench", [coordinator_core, heartbeat_cost, long_history])
def test_a_file_of_results_has_the_verdicts_of_today_s_goals(bench: ModuleType) -> None:
    plan = bench.plan(quick=False)
    for row in results(plan.name)["rows"]:
        goal = plan.goals(row["case"], row["subject"]).get(row["metric"])
        runs = [row["min"]] * (row["runs"] - 1) + [row["max"]]
        expected = (str(goal), goal.verdict(runs, plan.runs)) if goal else ("", "")
        assert (row["goal"], row["verdict"]) == expected


def most(metric: str, *subjects: str) -> float:
    """The greatest in any run of `recovery`; of these subjects, or of all."""
    rows = [row for row in results("recovery")["rows"] if row["metric"] == metric]
    of_these = [row for row in rows if not subjects or row["subject"] in subjects]
    return max(float(row["max"]) for row in of_these)


def words(page: str, pattern: str) -> tuple[str, ...]:
    """The numbers in a sentence of a page."""
    (found,) = re.findall(pattern, " ".join((ROOT / page).read_text().split()))
    return found if isinstance(found, tuple) else (found,)


def test_what_the_page_says_of_steps_done_twice_holds_for_each_run() -> None:
    assert most("lost_steps", "regroup", "torchft") == 0
    own = words(PAGE, r"FSDP2 repeats at most (\d+) steps")
    others = words(PAGE, r"torchrun and ft_launcher repeat up to (\d+) steps")
    differs = words(PAGE, r"No loss differs by more than (\S+) from")
    assert own == (f"{most('lost_steps', 'regroup-fsdp'):.0f}",)
    assert others == (f"{most('lost_steps', 'torchrun', 'torchrun-tuned', 'ft_launcher'):.0f}",)
    assert most("loss_difference") <= float(*differs)


def test_the_first_page_has_the_goodput_of_the_file() -> None:
    shown = words(FIRST, r"Regroup used (\S+) % of the time .*? tuned torchrun used (\S+) %")
    rows = [row for row in results("goodput")["rows"] if row["metric"] == "goodput"]
    assert all(agrees(n, row["median"] * 100) for n, row in zip(shown, rows, strict=True))


SOAKED = ("lost_steps_ddp", "lost_steps_fsdp_over_interval", "lost_steps_known_window")


def test_the_random_faults_are_those_of_the_file() -> None:
    parts = {part["seed"]: part["metrics"] for part in results("soak")["parts"]}
    found = r" \| (\d+)" * 4
    pattern = rf"\| (\d+), seeds (\d[\d, ]* and \d+) \| \w+{found} \|"
    newest = re.findall(pattern, (ROOT / PAGE).read_text())
    before = words(PAGE, rf"\| (\d+), (\d+) seeds before \| older ones{found} \|")
    shown = [int(faults) for faults, *_ in newest]
    for faults, named, *counts in newest:
        seeds = set(map(int, re.findall(r"\d+", named)))
        assert totals([parts.pop(seed) for seed in seeds]) == [int(n) for n in (faults, *counts)]
    rest = list(parts.values())
    assert [len(rest), *totals(rest)] == [int(n) for n in (before[1], before[0], *before[2:])]
    faults, kinds = words(FIRST, r"Of (\d+) \[random faults\]\S+ of (\d+) kinds")
    assert (int(faults), int(kinds)) == (sum(shown), len(results("soak")["after_last_change"]))


def totals(parts: list[Mapping[str, int]]) -> list[int]:
    """Faults, lost steps, stuck jobs, wrong statuses, duplicate pods."""
    groups = (("faults",), SOAKED, ("stuck_jobs",), ("mismatches",), ("duplicate_pods",))
    return [sum(part[name] for part in parts for name in group) for group in groups]
