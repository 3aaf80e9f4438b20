"""Whether a small job recovers more slowly than it did: a former commit beside this checkout.

    make bench NAME=recovery_versions [ARGS="--case rank-kill"]

`former` is the commit that wrote `bench/results/recovery.json`, unpacked from this clone, and `now`
this checkout. They take turns, with this Python and its packages; that needs root. In each turn one
training of `bench.recovery` meets a series of faults, at the same steps of both versions. A value
is the median of the series, of `lost_steps` the sum. With `-fsdp` the model is sharded.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import Plan, Values, command
from bench.outcome import UNITS as OF_RECOVERY
from tools.commits import unpack

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "bench" / "recovery_series.py"
FORMER = "ba4529ba"
"""Of 2026-11-22, before the present protocol."""
SERIES = {"rank-kill": 10, "pod-kill": 6, "join": 6}
"""Fault -> how often it comes in one training."""
SHARDED, QUICK = "-fsdp", "rank-kill-quick"
QUICK_SERIES = 2
CASES = (*SERIES, *(f"{fault}{SHARDED}" for fault in SERIES))
SUBJECTS = ("former", "now")
METRICS = ("detect_seconds", "down_seconds", "lost_steps")
UNITS = {name: OF_RECOVERY[name] for name in METRICS}
SOURCES = ("operator", "trainer", "client", ".")


def plan(quick: bool) -> Plan:
    """Five turns of each version; a quick run kills a rank of each twice."""
    cases = (QUICK,) if quick else CASES
    return Plan("recovery_versions", cases, SUBJECTS, UNITS, 1 if quick else 5, conditions)


def conditions(case: str, _subject: str) -> str:
    """What the figures depend on."""
    return f"former: {FORMER}; {arguments(case)[-1]} faults in each training"


def measure(case: str, subject: str) -> Values:
    """One turn of a version."""
    if subject == "now":
        return summarise(run(ROOT, arguments(case)))
    with tempfile.TemporaryDirectory(prefix="regroup-bench-") as name:
        unpack(ROOT, FORMER, Path(name))
        return summarise(run(Path(name), arguments(case)))


def arguments(case: str) -> tuple[str, str, str]:
    """Fault, subject and number of faults."""
    if case == QUICK:
        return "rank-kill", "regroup", str(QUICK_SERIES)
    fault = case.removesuffix(SHARDED)
    return fault, "regroup" if fault == case else "regroup-fsdp", str(SERIES[fault])


def run(root: Path, given: Sequence[str]) -> list[dict[str, Any]]:
    """A series of faults, with the modules of the version in this folder."""
    path = os.pathsep.join(str(root / source) for source in SOURCES)
    done = subprocess.run(
        [sys.executable, "-P", str(PROGRAM), *given],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        stdout=subprocess.PIPE,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def summarise(faults: Sequence[dict[str, Any]]) -> Values:
    """The figures of a series."""
    detected = [found["detect_seconds"] for found in faults if found["detect_seconds"] is not None]
    return {
        "detect_seconds": statistics.median(detected) if detected else None,
        "down_seconds": statistics.median(found["down_seconds"] for found in faults),
        "lost_steps": sum(found["lost_steps"] for found in faults),
    }


main = command(plan, measure)

if __name__ == "__main__":
    main()
