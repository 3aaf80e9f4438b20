"""A soak's result: a part for each seed, and all parts together in the benchmarks' format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import harness
from soak.checker import Verdict
from soak.kinds import FAULTS
from soak.memory_growth import Growth

NAME = "soak"
GROWTH = "memory_growth_mb"
UNITS = {
    "faults": "count",
    "lost_steps_ddp": "steps",
    "lost_steps_fsdp_over_interval": "steps",
    "lost_steps_known_window": "steps",
    "stuck_jobs": "count",
    "mismatches": "count",
    "duplicate_pods": "count",
    GROWTH: "MB per 100 faults",
}
Json = dict[str, Any]
AFTER = "after_last_change"
LEAST, LEAST_AFTER = 500, 200
"""Faults that are wanted in all, and after the last change of the product."""
UNKNOWN, NO_REASON = "not recorded", "reason not recorded"
"""Former parts had numbers alone of what was missed or not judged."""
SETTINGS = (
    "devcluster of 3 nodes; GPT tiny, global batch 12; no loss is excused as "
    "lost_steps_known_window: all count as lost_steps_ddp"
)


def metrics(
    faults: int, verdicts: Sequence[Verdict], memory: Mapping[str, Growth]
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
        GROWTH: _fastest(memory),
    }


def _fastest(memory: Mapping[str, Growth]) -> float | None:
    grown = (one.mebibytes for one in memory.values())
    return max((one for one in grown if one is not None), default=None)


def sums(memory: Mapping[str, Growth]) -> Json:
    """What a part keeps of it, so that the growth over several seeds can be computed."""
    return {role: asdict(grown) for role, grown in memory.items()}


def write_part(file: Path, part: Mapping[str, Any]) -> None:
    """One seed's result: seed, commit, date, metrics and faults."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"date": harness.now(), **part}, indent=2) + "\n")


def read_part(file: Path) -> Json:
    """What `write_part` wrote."""
    return dict(json.loads(file.read_text()))


def read_parts(file: Path) -> list[Json]:
    """The part in a file, or those that `merge` has written into it."""
    read = read_part(file)
    return list(read.get("parts", [read]))


def judged_anew(
    file: Path, verdicts: Sequence[Verdict], memory: Mapping[str, Growth], checker: str
) -> Json:
    """A part whose jobs were judged again, by the checker of that commit."""
    part = read_part(file)
    part["metrics"] = metrics(part["metrics"]["faults"], verdicts, memory)
    part["memory"] = sums(memory)
    part["checker"] = checker
    write_part(file, part)
    return part


def merge(parts: Sequence[Path], folder: Path, is_same: Callable[[str], bool]) -> Path:
    """All parts as one file of results, of which some may have been merged already. Raises
    ValueError for two parts of a seed. `is_same` says of a commit whether the product has not
    changed since.
    """
    read = [_readable(part, is_same) for path in parts for part in read_parts(path)]
    seeds = [one["seed"] for one in read]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"a seed occurs twice among {sorted(seeds)}: give each part its own seed")
    plan = harness.Plan(NAME, (), ("regroup",), UNITS, 1, lambda _case, _subject: SETTINGS)
    read.sort(key=lambda part: int(part["seed"]))
    cases = {f"seed-{one['seed']}": one["metrics"] for one in read} | {"all-seeds": _sums(read)}
    rows = [
        row
        for case, figures in cases.items()
        for row in harness.rows(plan, case, "regroup", [figures])
    ]
    file = harness.write(folder, NAME, rows, quick=False)
    document = json.loads(file.read_text())
    document |= {"struck": struck(read), AFTER: struck(read, AFTER), "parts": read}
    file.write_text(json.dumps(document, indent=2) + "\n")
    return file


def struck(parts: Sequence[Json], mark: str = "") -> Json:
    """Kind -> how many faults of it struck, in parts with this mark; all if there is none."""
    counts = Counter(
        fault["kind"] for part in parts if not mark or part[mark] for fault in part["faults"]
    )
    return {kind.name: counts[kind.name] for kind in FAULTS}


def summary(document: Json) -> Iterator[str]:
    """Sentences about the faults of a merged file."""
    counted, late = sum(document["struck"].values()), sum(document[AFTER].values())
    yield (
        f"{late} of {counted} faults follow the last change of the product's code "
        f"(wanted: at least {LEAST_AFTER} of {LEAST})"
    )
    for which in ("struck", AFTER):
        never = [kind for kind, count in document[which].items() if not count]
        since = " since that change" if which == AFTER else ""
        yield f"never struck{since}: {', '.join(never) or 'no kind'}"
    for part in document["parts"]:
        when = "after" if part[AFTER] else "not after"
        yield (
            f"seed {part['seed']}: {len(part['faults'])} faults {when} that change, at "
            f"{part['commit']}; missed {_reasons(part['missed'])}; not judged "
            f"{_reasons(part['unjudged'])}"
        )


def _reasons(faults: Sequence[Json]) -> str:
    """How many, and why."""
    kinds = (f"{one['kind']}: " if one["kind"] != UNKNOWN else "" for one in faults)
    said = dict.fromkeys(kind + one["reason"] for kind, one in zip(kinds, faults, strict=True))
    return f"{len(faults)}" + (f" ({'; '.join(said)})" if said else "")


def _readable(part: Json, is_same: Callable[[str], bool]) -> Json:
    """A part with a list of what was missed or not judged, as no former one has, and with a mark
    whether it follows the last change of the product.
    """
    lists = {name: _listed(part.get(name, 0), name) for name in ("missed", "unjudged")}
    return {**part, **lists, AFTER: is_same(part["commit"])}


def _listed(found: int | Sequence[Json], name: str) -> list[Json]:
    if isinstance(found, int):
        return [{"kind": UNKNOWN, "job": UNKNOWN, "reason": NO_REASON}] * found
    return [{**one, "reason": one.get("reason") or one.get(name) or NO_REASON} for one in found]


def _sums(parts: Sequence[Json]) -> Mapping[str, float | None]:
    """The figures of all seeds together. Former parts have other sums of memory, of slopes in which
    the rise of young processes counted: they mean nothing here, unless they are judged anew.
    """
    counts = {
        name: sum(part["metrics"][name] for part in parts) for name in UNITS if name != GROWTH
    }
    grown: dict[str, Growth] = {}
    for part in parts:
        for role, kept in part.get("memory", {}).items():
            if "squares" in kept:
                grown[role] = grown.get(role, Growth()) + Growth(**kept)
    return {**counts, GROWTH: _fastest(grown)}
