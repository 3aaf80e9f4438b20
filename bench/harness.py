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
OURS = ("regroup", "torch", "aiohttp", "pydantic")
PEERS = ("accelerate", "lightning", "torchft-nightly", "nvidia-resiliency-ext")
"""Recorded where they are installed."""

Values = Mapping[str, float | None]
"""Metric -> value of one run; None where the run has none."""
Measure = Callable[[str, str], Values]
"""Case, subject -> values."""


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


def collect(plan: Plan, measure: Measure, report: Callable[[str], None]) -> list[Row]:
    """Measure all; subjects take turns, in reverse order every second time, so that a drift hits
    all alike.
    """
    found: dict[tuple[str, str], list[Values]] = defaultdict(list)
    for case in plan.cases:
        for number in range(plan.runs):
            for subject in plan.subjects if number % 2 == 0 else reversed(plan.subjects):
                values = measure(case, subject)
                found[case, subject].append(values)
                report(f"{case} {subject} run {number + 1}: {shown(values)}")
    return [
        row for (case, subject), runs in found.items() for row in rows(plan, case, subject, runs)
    ]


def rows(plan: Plan, case: str, subject: str, runs: Sequence[Values]) -> list[Row]:
    """A row for each metric that at least one run has."""
    settings, date = plan.settings(case, subject), now()
    made: list[Row] = []
    for metric, unit in plan.units.items():
        values = [value for run in runs if (value := run.get(metric)) is not None]
        if values:
            middle = statistics.median(values)
            made.append(
                Row(
                    case,
                    subject,
                    metric,
                    unit,
                    min(values),
                    middle,
                    max(values),
                    len(values),
                    settings,
                    date,
                )
            )
    return made


def shown(values: Values) -> str:
    """Values in a line."""
    return ", ".join(
        f"{name} {'-' if value is None else f'{value:.3g}'}" for name, value in values.items()
    )


def table(name: str, found: Sequence[Row]) -> Table:
    """The results for a terminal."""
    drawn = Table(title=name)
    for column in ("case", "subject", "metric", "unit"):
        drawn.add_column(column, no_wrap=True)
    for column in ("min", "median", "max", "runs"):
        drawn.add_column(column, justify="right")
    for row in found:
        figures = (f"{value:.3g}" for value in (row.min, row.median, row.max))
        drawn.add_row(row.case, row.subject, row.metric, row.unit, *figures, str(row.runs))
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


def kept(file: Path, case: str = "", subject: str = "") -> list[Row]:
    """The rows of a file but those of this case, or of this subject in it, which are measured
    anew.
    """
    written = json.loads(file.read_text())["rows"] if file.exists() else []
    rows = (Row(**row) for row in written)
    return [row for row in rows if row.case != case or subject not in ("", row.subject)]


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
    @click.option("--subject", "alone", help="Only this subject.")
    @click.option(
        "--output", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the results."
    )
    def main(
        quick: bool, runs: int | None, only: str | None, alone: str | None, output: Path
    ) -> None:
        plan = plan_of(quick)
        cases, subjects = chosen("case", only, plan.cases), chosen("subject", alone, plan.subjects)
        plan = replace(plan, cases=cases, subjects=subjects, runs=runs or plan.runs)
        terminal = Console(highlight=False)
        console = Console(highlight=False, width=max(terminal.width, TABLE_WIDTH))
        found = kept(output / f"{plan.name}.json", only) if only and not quick else []
        file = output
        # Write after each case, so that an interrupted benchmark keeps the measured cases.
        for case in cases:
            one = replace(plan, cases=(case,))
            found += collect(
                one, measure, lambda line: console.print(line, style="dim", soft_wrap=True)
            )
            file = write(output, plan.name, found, quick=quick)
            add(output)
        console.print(table(plan.name, found))
        for line in dict.fromkeys(
            f"{row.subject}: {row.settings}" for row in found if row.settings
        ):
            console.print(line, style="dim", soft_wrap=True)
        console.print(f"written to {file}", soft_wrap=True)

    return main


def chosen(kind: str, only: str | None, names: Sequence[str]) -> Sequence[str]:
    """All, or the one that is asked for."""
    if only is not None and only not in names:
        sys.exit(f"no {kind} {only!r}: there is {', '.join(names)}")
    return names if only is None else (only,)
