"""Whether a small job recovers more slowly than it did: a former commit beside this checkout.

    make bench NAME=recovery_versions [ARGS="--case rank-kill"]

`former` is the commit that wrote `bench/results/recovery.json`, unpacked from this clone, and `now`
this checkout. They take turns. Each runs its own `bench.recovery`, with this Python and its
packages; that needs root. A value is the mean of two faults, which come at the same steps of both
versions. With `-fsdp` the model is sharded.
"""

from __future__ import annotations

import json
import os
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
FORMER = "ba4529ba"
"""Of 2026-11-22, before the present protocol."""
FAULTS = ("rank-kill", "pod-kill", "join")
SHARDED, QUICK = "-fsdp", "rank-kill-quick"
CASES = (*FAULTS, *(f"{fault}{SHARDED}" for fault in FAULTS))
SUBJECTS = ("former", "now")
REPEATED = 2
METRICS = ("recovered", "detect_seconds", "down_seconds", "lost_steps", "trains")
UNITS = {name: OF_RECOVERY[name] for name in METRICS}
SOURCES = ("operator", "trainer", "client", ".")


def plan(quick: bool) -> Plan:
    """Five turns of each version; a quick run kills a rank of each once."""
    cases = (QUICK,) if quick else CASES
    about = f"former: {FORMER}; the mean of {REPEATED} faults"
    return Plan("recovery_versions", cases, SUBJECTS, UNITS, 1 if quick else 5, lambda *_: about)


def measure(case: str, subject: str) -> Values:
    """One turn of a version."""
    with tempfile.TemporaryDirectory(prefix="regroup-bench-") as name:
        root, output = Path(name) / "former", Path(name) / "results"
        if subject == "now":
            root = ROOT
        else:
            unpack(ROOT, FORMER, root)
        run(root, [*options(case), "--output", str(output)])
        return means(json.loads((output / "recovery.json").read_text()))


def options(case: str) -> list[str]:
    """What `bench.recovery` is to do."""
    if case == QUICK:
        return ["--quick"]
    subject = "regroup-fsdp" if case.endswith(SHARDED) else "regroup"
    fault = case.removesuffix(SHARDED)
    return ["--case", fault, "--subject", subject, "--runs", str(REPEATED)]


def run(root: Path, arguments: Sequence[str]) -> None:
    """The benchmark of the version in this folder."""
    path = os.pathsep.join(str(root / source) for source in SOURCES)
    subprocess.run(
        [sys.executable, "-m", "bench.recovery", *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        stdout=subprocess.DEVNULL,
    )


def means(document: Any) -> Values:
    """Metric -> value of a file of results with one row of each."""
    rows = {row["metric"]: row["median"] for row in document["rows"]}
    return {name: rows.get(name) for name in METRICS}


main = command(plan, measure)

if __name__ == "__main__":
    main()
