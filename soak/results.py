"""A soak's result: a part for each seed, and all parts together in the benchmarks' format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import harness
from soak.checker import Memory, Verdict, memory_growth

NAME = "soak"
UNITS = {
    "faults": "count",
    "lost_steps_ddp": "steps",
    "lost_steps_fsdp_over_interval": "steps",
    "lost_steps_known_window": "steps",
    "stuck_jobs": "count",
    "mismatches": "count",
    "duplicate_pods": "count",
    "memory_growth_mb": "MB per 100 faults",
}
Json = dict[str, Any]
SETTINGS = (
    "devcluster of 3 nodes; GPT tiny, global batch 12; no loss is excused as "
    "lost_steps_known_window: all count as lost_steps_ddp"
)


def metrics(
    faults: int, verdicts: Sequence[Verdict], memory: Sequence[Memory]
) -> Mapping[str, float | None]:
    """The figures of one seed. A metric without a value was not measured."""
    return {
        "faults": faults,
        "lost_steps_ddp": sum(one.lost_whole_copies for one in verdicts),
        "lost_steps_fsdp_over_interval": sum(one.lost_over_interval for one in verdicts),
        "lost_steps_known_window": 0,
        "stuck_jobs": sum(bool(one.stuck) for one in verdicts),
        "mismatches": sum(len(one.mismatches) for one in verdicts),
        "duplicate_pods": sum(bool(one.duplicates) for one in verdicts),
        "memory_growth_mb": max(memory_growth(memory).values(), default=None),
    }


def write_part(file: Path, part: Mapping[str, Any]) -> None:
    """One seed's result: seed, commit, date, metrics and faults."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"date": harness.now(), **part}, indent=2) + "\n")


def read_part(file: Path) -> Json:
    """What `write_part` wrote."""
    return dict(json.loads(file.read_text()))


def judged_anew(file: Path, verdicts: Sequence[Verdict], checker: str) -> Json:
    """A part whose jobs were judged again, by the checker of that commit. What the memory grew by
    stays as it was.
    """
    part = read_part(file)
    before = part["metrics"]
    figures = metrics(before["faults"], verdicts, ())
    part["metrics"] = {**figures, "memory_growth_mb": before["memory_growth_mb"]}
    part["checker"] = checker
    write_part(file, part)
    return part


def merge(parts: Sequence[Path], folder: Path) -> Path:
    """All parts as one file of results. Raises ValueError for two parts of a seed."""
    read = [read_part(path) for path in parts]
    seeds = [one["seed"] for one in read]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"a seed occurs twice among {sorted(seeds)}: give each part its own seed")
    plan = harness.Plan(NAME, (), ("regroup",), UNITS, 1, lambda _case, _subject: SETTINGS)
    rows = [
        row
        for one in sorted(read, key=lambda part: int(part["seed"]))
        for row in harness.rows(plan, f"seed-{one['seed']}", "regroup", [one["metrics"]])
    ]
    file = harness.write(folder, NAME, rows, quick=False)
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "parts": read}, indent=2) + "\n")
    return file
