"""A soak's result: a part for each seed, and all parts together in the benchmarks' format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import harness
from bench.harness import Goal
from soak.checker import Verdict
from soak.kinds import FAULTS
from soak.memory_growth import LEAST as NEEDED
from soak.memory_growth import MOST, Growth

NAME = "soak"
ALL = "all-seeds"
SEEDS, LATE, GROWTH = "seeds", "faults_after_last_change", "memory_growth_mb"
FINDINGS = {
    "lost_steps_ddp": "steps",
    "lost_steps_fsdp_over_interval": "steps",
    "lost_steps_known_window": "steps",
    "stuck_jobs": "count",
    "mismatches": "count",
    "duplicate_pods": "count",
}
UNITS = {
    SEEDS: "count",
    "faults": "count",
    LATE: "count",
    **FINDINGS,
    GROWTH: "MB per 100 faults",
}
"""Seeds, and faults after the last change of the product, are of all seeds together."""
LEAST_SEEDS, LEAST, LEAST_AFTER = 5, 500, 200
"""Seeds and faults that are wanted in all, and faults after the last change of the product."""
GOALS = {**dict.fromkeys(FINDINGS, Goal(0)), GROWTH: Goal(MOST)}
TOTALS = {
    SEEDS: Goal(LEAST_SEEDS, at_least=True),
    "faults": Goal(LEAST, at_least=True),
    LATE: Goal(LEAST_AFTER, at_least=True),
}
Json = dict[str, Any]
AFTER = "after_last_change"
UNKNOWN, NO_REASON = "not recorded", "reason not recorded"
"""Former parts had numbers alone of what was missed or not judged."""
SETTINGS = (
    "devcluster of 3 nodes; GPT tiny, global batch 12; no window is excused in which steps may be "
    f"lost; {GROWTH} is of the role that grew fastest, if {NEEDED} differences of it are known "
    "(docs/design/0030)"
)


def metrics(
    faults: int, verdicts: Sequence[Verdict], memory: Mapping[str, Growth]
) -> Mapping[str, float | None]:
    """The figures of one seed. A metric without a value was not measured."""
    return {
        "faults": faults,
        "lost_steps_ddp": sum(one.lost_whole_copies for one in verdicts),
        "lost_steps_fsdp_over_interval": sum(one.lost_over_interval for one in verdicts),
        "lost_steps_known_window": 0,  # nothing is counted apart: such steps are in the first row
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


def plan(parts: Sequence[Mapping[str, Any]]) -> harness.Plan:
    """What rows say of these parts: goals, and which product and checker a figure is of."""
    settings = {
        f"seed-{one['seed']}": f"{SETTINGS}; product {one['commit']}, checker {one['checker']}"
        for one in parts
    } | {ALL: f"{SETTINGS}; each seed by its own checker"}
    return harness.Plan(
        NAME,
        (),
        ("regroup",),
        UNITS,
        1,
        lambda case, _subject: settings[case],
        lambda case, _subject: {**GOALS, **TOTALS} if case == ALL else GOALS,
    )


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
    read.sort(key=lambda part: int(part["seed"]))
    cases = {f"seed-{one['seed']}": one["metrics"] for one in read} | {ALL: _sums(read)}
    of_parts = plan(read)
    rows = [
        row
        for case, figures in cases.items()
        for row in harness.rows(of_parts, case, "regroup", [figures])
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
    """Sentences about the faults of a merged file, and the goals that were missed."""
    counted, late = sum(document["struck"].values()), sum(document[AFTER].values())
    yield (
        f"{late} of {counted} faults follow the last change of the product's code "
        f"(wanted: at least {LEAST_AFTER} of {LEAST})"
    )
    for which in ("struck", AFTER):
        never = [kind for kind, count in document[which].items() if not count]
        since = " since that change" if which == AFTER else ""
        yield f"never struck{since}: {', '.join(never) or 'no kind'}"
    parts = document["parts"]
    for part in parts:
        when = "after" if part[AFTER] else "not after"
        yield (
            f"seed {part['seed']}: {_count(part)} faults {when} that change, at "
            f"{part['commit']}, judged by {part['checker']}; missed {_reasons(part['missed'])}; "
            f"not judged {_reasons(part['unjudged'])}"
        )
    for role, growth in _grown(parts).items():
        known = growth.mebibytes
        said = "too few to know" if known is None else f"{known:.1f} MB more per 100 faults"
        yield f"memory of {role}: {said}, by {growth.count} differences"
    for row in document["rows"]:
        if row["verdict"] == "missed":
            yield f"{row['case']}: {row['metric']} {row['median']:.3g}, wanted {row['goal']}"


def _count(part: Json) -> str:
    """How many struck. Fewer than were drawn where the time was over, or nothing came of them."""
    struck, drawn = len(part["faults"]), part["drawn"]
    return f"{struck}" if drawn in (struck, None) else f"{struck} of {drawn} drawn"


def _reasons(faults: Sequence[Json]) -> str:
    """How many, and why."""
    kinds = (f"{one['kind']}: " if one["kind"] != UNKNOWN else "" for one in faults)
    said = dict.fromkeys(kind + one["reason"] for kind, one in zip(kinds, faults, strict=True))
    return f"{len(faults)}" + (f" ({'; '.join(said)})" if said else "")


def _readable(part: Json, is_same: Callable[[str], bool]) -> Json:
    """A part with what former ones lack: how many faults were drawn, a list of what was missed or
    not judged, the commit of its checker, which was that of the product, and a mark whether it
    follows the last change of the product.
    """
    lists = {name: _listed(part.get(name, 0), name) for name in ("missed", "unjudged")}
    before = {"checker": part["commit"], "drawn": None}
    return {**before, **part, **lists, AFTER: is_same(part["commit"])}


def _listed(found: int | Sequence[Json], name: str) -> list[Json]:
    if isinstance(found, int):
        return [{"kind": UNKNOWN, "job": UNKNOWN, "reason": NO_REASON}] * found
    return [{**one, "reason": one.get("reason") or one.get(name) or NO_REASON} for one in found]


def _sums(parts: Sequence[Json]) -> Mapping[str, float | None]:
    """The figures of all seeds together."""
    counts = {name: sum(part["metrics"][name] for part in parts) for name in ("faults", *FINDINGS)}
    late = sum(part["metrics"]["faults"] for part in parts if part[AFTER])
    return {SEEDS: len(parts), **counts, LATE: late, GROWTH: _fastest(_grown(parts))}


def _grown(parts: Sequence[Json]) -> Mapping[str, Growth]:
    """Role -> the growth of its processes over all seeds. Former parts have other sums of memory,
    of slopes in which the rise of young processes counted: they mean nothing here, unless they are
    judged anew.
    """
    grown: dict[str, Growth] = {}
    for part in parts:
        for role, kept in part.get("memory", {}).items():
            if "squares" in kept:
                grown[role] = grown.get(role, Growth()) + Growth(**kept)
    return grown
