"""What all benchmarks share: runs in alternating order, a table, and a file of results with machine
and versions.

A benchmark is a function that measures one case of one subject once. Subject `regroup` is ours.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

TABLE_WIDTH = 110
RESULTS = Path(__file__).resolve().parent / "results"
QUICK_RESULTS = Path(tempfile.gettempdir()) / "regroup-quick-results"
"""Where a quick run writes, so that it leaves the results of others alone."""
OUTPUT_HELP = "Folder of the results; by default bench/results, of a quick run a temporary one."
OURS = ("regroup", "torch", "aiohttp", "pydantic")
PEERS = ("accelerate", "lightning", "torchft-nightly", "nvidia-resiliency-ext")
"""Recorded where they are installed."""

Values = Mapping[str, float | None]
"""Metric -> value of one run; None where the run has none."""
Measure = Callable[[str, str], Values]
"""Case, subject -> values."""


@dataclass(frozen=True)
class Goal:
    """What each run of a row is to reach."""

    limit: float
    at_least: bool = False
    """By default a figure is to be at most the limit."""
    times: str = ""
    """The subject whose figure the limit is a multiple of; empty: it is the figure itself."""

    def __str__(self) -> str:
        times = f"x {self.times}" if self.times else ""
        return f"{'>=' if self.at_least else '<='} {self.limit:.3g}{times}"

    def judged(self, value: float | None, other: float | None = None) -> str:
        """The goal and its verdict, `open` as long as nothing can be compared. `other`: the value
        of the subject of `times`; the multiple that was reached is shown too.
        """
        if value is None or (self.times and not other):
            return f"{self}: open"
        if not self.times or not other:
            return f"{self}: {self.verdict([value])}"
        reached = value / other
        return f"{self}: {self.verdict([reached])} ({reached:.2f}x)"

    def verdict(self, values: Sequence[float], runs: int = 1) -> str:
        """`met`, or `missed` where one of the runs does not reach it or has no value."""
        if len(values) < runs:
            return "missed"
        if self.at_least:
            return "met" if min(values) >= self.limit else "missed"
        return "met" if max(values) <= self.limit else "missed"


@dataclass(frozen=True)
class Row:
    """A metric over the runs of a case and subject."""

    case: str
    subject: str
    metric: str
    unit: str
    min: float
    median: float
    max: float
    runs: int
    """The number of runs that had a value."""
    settings: str = ""
    """What the figure depends on besides machine and versions."""
    date: str = ""
    """When its case was measured."""
    goal: str = ""
    verdict: str = ""
    """Whether all runs reach the goal; empty where there is none."""


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    name: str
    cases: Sequence[str]
    subjects: Sequence[str]
    units: Mapping[str, str]
    """Metric -> unit, in the order of the table."""
    runs: int
    settings: Callable[[str, str], str] = lambda _case, _subject: ""
    """Case, subject -> what a row's figures depend on."""
    goals: Callable[[str, str], Mapping[str, Goal]] = lambda _case, _subject: {}
    """Case, subject -> what its metrics are to reach."""


def collect(
    plan: Plan,
    measure: Measure,
    report: Callable[[str], None],
    save: Callable[[Sequence[Row]], None] = lambda _rows: None,
) -> list[Row]:
    """Measure all; subjects take turns, in reverse order every second time, so that a drift hits
    all alike. `save` gets what there is after each run.
    """
    found: dict[tuple[str, str], list[Values]] = defaultdict(list)
    made: list[Row] = []
    for case in plan.cases:
        for number in range(plan.runs):
            for subject in plan.subjects if number % 2 == 0 else reversed(plan.subjects):
                begun = time.monotonic()
                values = measure(case, subject)
                took = time.monotonic() - begun
                found[case, subject].append(values)
                report(f"{case} {subject} run {number + 1} in {took:.0f} s: {shown(values)}")
                made = [row for (c, s), runs in found.items() for row in rows(plan, c, s, runs)]
                save(made)
    return made


def rows(plan: Plan, case: str, subject: str, runs: Sequence[Values]) -> list[Row]:
    """A row for each metric that at least one run has."""
    settings, goals, date = plan.settings(case, subject), plan.goals(case, subject), now()
    made: list[Row] = []
    for metric, unit in plan.units.items():
        if values := [value for run in runs if (value := run.get(metric)) is not None]:
            least, middle, most = min(values), statistics.median(values), max(values)
            row = Row(case, subject, metric, unit, least, middle, most, len(values), settings, date)
            if goal := goals.get(metric):
                row = replace(row, goal=str(goal), verdict=goal.verdict(values, len(runs)))
            made.append(row)
    return made


def shown(values: Values) -> str:
    """Values in a line."""
    return ", ".join(
        f"{name} {'-' if value is None else f'{value:.3g}'}" for name, value in values.items()
    )


def table(name: str, found: Sequence[Row]) -> Table:
    """The results for a terminal."""
    drawn, has_goals = Table(title=name), any(row.goal for row in found)
    for column in ("case", "subject", "metric", "unit"):
        drawn.add_column(column, no_wrap=True)
    for column in ("min", "median", "max", "runs"):
        drawn.add_column(column, justify="right")
    if has_goals:
        drawn.add_column("goal", no_wrap=True)
    for row in found:
        figures = (f"{value:.3g}" for value in (row.min, row.median, row.max))
        goal = (f"{row.goal} {row.verdict}",) if has_goals else ()
        drawn.add_row(row.case, row.subject, row.metric, row.unit, *figures, str(row.runs), *goal)
    return drawn


def now() -> str:
    """ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memoryGiB": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "processor": platform.machine(),
        "loadAverage": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Versions of Python, Regroup, its dependencies and the peers."""
    found = {"python": platform.python_version()}
    for name in OURS + PEERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def write(folder: Path, name: str, found: Sequence[Row], *, quick: bool) -> Path:
    """Write the results; a quick run is marked, since its figures prove nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "name": name,
        "date": now(),
        "quick": quick,
        "machine": machine(),
        "versions": versions(),
        "rows": [asdict(row) for row in found],
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(document, indent=2) + "\n")
    return file


def written(file: Path) -> list[Row]:
    """The rows of a file of results; none where there is no file, or that of a quick run."""
    if not file.exists() or (document := json.loads(file.read_text()))["quick"]:
        return []
    return [Row(**row) for row in document["rows"]]


def merged(former: Sequence[Row], anew: Sequence[Row]) -> list[Row]:
    """All rows, without the former ones of a case and subject that was measured anew."""
    measured = {(row.case, row.subject) for row in anew}
    return [*(row for row in former if (row.case, row.subject) not in measured), *anew]


def folder_of(quick: bool) -> Path:
    """Where results go by default."""
    return QUICK_RESULTS if quick else RESULTS


class Results:
    """A file of results. It is written after each run, so that an interrupted benchmark keeps what
    was measured.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        quick: bool,
        *,
        adds: bool,
        place: Callable[[Row], tuple[int, ...]] = lambda _: (),
    ) -> None:
        """`adds`: rows that are not measured anew stay in the file. `place` orders them."""
        self._place = place
        self._folder, self._name, self._quick = folder, name, quick
        self.rows = written(folder / f"{name}.json") if adds and not quick else []

    def add(self, anew: Sequence[Row]) -> None:
        """Add rows, which replace those of the same case and subject."""
        self.rows = sorted(merged(self.rows, anew), key=self._place)
        write(self._folder, self._name, self.rows, quick=self._quick)


def command(
    plan_of: Callable[[bool], Plan],
    measure: Measure,
    add: Callable[[Path], None] = lambda _folder: None,
) -> click.Command:
    """The command line of a benchmark; `plan_of` takes whether the run is a quick one.

    `add` writes what there is besides the rows to the folder of the results, after each case.
    """

    @click.command()
    @click.option(
        "--quick", is_flag=True, help="A smoke run of under a minute; its figures prove nothing."
    )
    @click.option("--runs", type=click.IntRange(1), help="Runs of each case and subject.")
    @click.option(
        "--case", "only", help="Only this case; the results of the others stay as they are."
    )
    @click.option("--subject", "alone", help="Only this subject; as for a case.")
    @click.option("--output", "given", type=click.Path(path_type=Path), help=OUTPUT_HELP)
    def main(
        quick: bool, runs: int | None, only: str | None, alone: str | None, given: Path | None
    ) -> None:
        plan, output = plan_of(quick), given or folder_of(quick)
        cases, subjects = chosen("case", only, plan.cases), chosen("subject", alone, plan.subjects)
        plan = replace(plan, cases=cases, subjects=subjects, runs=runs or plan.runs)
        terminal = Console(highlight=False)
        console = Console(highlight=False, width=max(terminal.width, TABLE_WIDTH))
        results = Results(output, plan.name, quick, adds=bool(only or alone))
        for case in cases:
            collect(
                replace(plan, cases=(case,)),
                measure,
                lambda line: console.print(line, style="dim", soft_wrap=True),
                results.add,
            )
            add(output)
        found = results.rows
        console.print(table(plan.name, found))
        for line in dict.fromkeys(
            f"{row.subject}: {row.settings}" for row in found if row.settings
        ):
            console.print(line, style="dim", soft_wrap=True)
        console.print(f"written to {output / plan.name}.json", soft_wrap=True)

    return main


def chosen(kind: str, only: str | None, names: Sequence[str]) -> Sequence[str]:
    """All, or the one that is asked for."""
    if only is not None and only not in names:
        sys.exit(f"no {kind} {only!r}: there is {', '.join(names)}")
    return names if only is None else (only,)
