"""What became of the jobs that other projects publish, as lines at the end of a run of tests.

Tests record it by pytest's `record_property`, which reaches the process that prints also from
another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

Record = Callable[[str, object], None]
"""pytest's `record_property`."""
CONVERTED, RUN = "published job converted", "published job run"


def record_converted(record: Record, refused: str) -> None:
    """A job was converted, and is valid unless there is a reason to refuse it."""
    record(CONVERTED, {"refused": refused})


def record_run(record: Record, place: str, kind: str, note: str) -> None:
    """A converted job has run to its end. `place`: as what, or where; `note`: what ran."""
    record(RUN, {"place": place, "kind": kind, "note": note})


def lines(properties: Iterable[tuple[str, object]]) -> list[str]:
    """What there is to print; empty where no such test has run."""
    found = [(name, value) for name, value in properties if isinstance(value, dict)]
    reasons = [value["refused"] for name, value in found if name == CONVERTED]
    runs = [value for name, value in found if name == RUN]
    return [*_of_converted(reasons), *_of_runs(runs)]


def _of_converted(reasons: list[str]) -> list[str]:
    if not reasons:
        return []
    refused = Counter(filter(None, reasons))
    count = refused.total()
    return [
        f"{len(reasons)} converted: {len(reasons) - count} validated, {count} refused",
        *(f"  refused, {count} of them: {why}" for why, count in refused.most_common()),
    ]


def _of_runs(runs: list[dict[str, str]]) -> list[str]:
    shown = []
    for place in sorted({run["place"] for run in runs}):
        here = [run for run in runs if run["place"] == place]
        kinds = Counter(run["kind"] for run in here)
        counts = ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items()))
        shown.append(f"{len(here)} run {place}, with a stand-in for the script ({counts})")
        shown += [f"  {run['note']}" for run in here]
    return shown
