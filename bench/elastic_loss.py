"""The effect of resizes on the loss: a run over 4, 3, 1, 2 and 4 workers, and one that keeps 4.

    make bench NAME=elastic_loss [ARGS=--quick]

Both train the same steps; `relative_difference` is the largest |difference| / loss of a step. Each
resize is a new generation that resumes from the checkpoint of the one before. The global batch of
22 samples is not divisible by 3 or 4.

`regroup` is the built-in trainer with `training.deterministic: rounding` (case `resizes`) or
`exact` (case `resizes-exact`). `naive-mean` is DDP as most scripts use it. It splits the same
global batch over the workers. Each takes the mean of its samples, and DDP takes the mean of these
means. It has no exact mode, and is shown beside both.

`step_time_ratio` is the cost of exact: a step's time in exact mode by that in the default one, for
2 workers.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.elastic_ranks import ElasticRun, Request
from bench.harness import Plan, Values, command

WORLD_SIZES = (4, 3, 1, 2, 4)
CASES = ("resizes", "resizes-exact")
SUBJECTS = ("regroup", "naive-mean")
UNITS = {"relative_difference": "ratio", "step_time_ratio": "ratio"}
_QUICK_VARIABLE = "REGROUP_BENCH_QUICK"
"""Passes the choice of a quick run to `measure`."""


def plan(quick: bool) -> Plan:
    """100 steps of the 1m model three times; a quick run makes 10 of a tiny one."""
    os.environ[_QUICK_VARIABLE] = "1" if quick else ""
    return Plan("elastic_loss", CASES, SUBJECTS, UNITS, 1 if quick else 3)


def measure(case: str, subject: str) -> Values:
    """Compare a run with resizes and one without."""
    quick = bool(os.environ.get(_QUICK_VARIABLE))
    exact = case == "resizes-exact" and subject == "regroup"
    steps = 2 if quick else 20
    run = trained_once if quick else train
    changing = run(Request(subject, WORLD_SIZES, steps, exact, quick))
    steady = run(Request(subject, WORLD_SIZES[:1], steps * len(WORLD_SIZES), exact, quick))
    found = {"relative_difference": difference(changing.losses, steady.losses)}
    return {**found, "step_time_ratio": cost_of_exactness(quick)} if exact else found


def difference(losses: list[float], expected: list[float]) -> float:
    """The largest relative difference of a step."""
    return max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))


def cost_of_exactness(quick: bool) -> float:
    """Median step time of exact runs by that of default ones, which take turns."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for exact in (True, False) if quick else (True, False, False, True):
        seconds[exact] += train(Request("regroup", (2,), 4 if quick else 20, exact, quick)).seconds[
            1:
        ]
    return statistics.median(seconds[True]) / statistics.median(seconds[False])


def train(request: Request) -> ElasticRun:
    """Run the generations in processes of their own."""
    with tempfile.TemporaryDirectory(prefix="regroup-bench-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "bench.elastic_ranks", folder],
            input=json.dumps(request.__dict__),
            env={
                **os.environ,
                **dict.fromkeys(
                    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
                ),
            },
            text=True,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{request} ended with {done.returncode}: {done.stderr[-2000:]}")
        return ElasticRun.read(Path(folder))


trained_once = functools.cache(train)
"""For quick runs: the naive run is the same in both cases."""
main = command(plan, measure)

if __name__ == "__main__":
    main()
