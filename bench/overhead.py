"""What a framework adds to a step and to the memory of a training, by a model of one weight.

    make bench NAME=overhead [ARGS=--quick]

One process trains; the result is what it takes beyond a bare loop. `regroup` has everything on: a
coordinator and an agent with heartbeats, metrics, the history of steps, exact data, the checkpoint
hook and the check for signals. The others have loggers, progress bars and checkpoints switched off.
A bare loop runs just before each subject.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from bench import overhead_job
from bench.harness import Plan, Values, command
from regroup.local.local_run import LocalRun
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.desired import Desired

STEPS, QUICK_STEPS = 8000, 800
PEERS = {"accelerate": "accelerate", "lightning": "lightning", "hf": "transformers"}
"""Subject -> the package that it needs."""
UNITS = {
    "ms_per_step_over_bare": "ms",
    "rss_mb_over_bare": "MB",
    "ms_per_step": "ms",
    "rss_mb": "MB",
    "installed": "ratio",
}


def plan(quick: bool) -> Plan:
    """Five runs of all; a quick one takes fewer steps and leaves the peers out that are slow to
    start.
    """
    if quick:
        return Plan("overhead", ("zero-size-quick",), ("regroup", "accelerate"), UNITS, 1)
    return Plan("overhead", ("zero-size",), ("regroup", *PEERS), UNITS, 5)


def measure(case: str, subject: str) -> Values:
    """A bare loop and the subject, one after the other."""
    if subject in PEERS and find_spec(PEERS[subject]) is None:
        return {"installed": 0.0}
    steps = QUICK_STEPS if case.endswith("quick") else STEPS
    with tempfile.TemporaryDirectory(prefix="regroup-bench-") as folder:
        base = run_alone("bare", steps, Path(folder))
        found = (
            run_in_job(steps, Path(folder))
            if subject == "regroup"
            else run_alone(subject, steps, Path(folder))
        )
    return {
        "ms_per_step_over_bare": found["milliseconds"] - base["milliseconds"],
        "rss_mb_over_bare": found["megabytes"] - base["megabytes"],
        "ms_per_step": found["milliseconds"],
        "rss_mb": found["megabytes"],
    }


def run_alone(subject: str, steps: int, folder: Path) -> dict[str, float]:
    """Run a subject in a process of its own; returns its figures."""
    output = folder / f"{subject}.json"
    job = [sys.executable, overhead_job.__file__, subject, str(steps), str(output)]
    subprocess.run(
        job, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return dict(json.loads(output.read_text()))


def run_in_job(steps: int, folder: Path) -> dict[str, float]:
    """Run Regroup as the only rank of a local job; returns its figures."""
    output = folder / "regroup.json"
    desired = Desired(
        revision=1,
        namespace="bench",
        job="overhead",
        replicas=1,
        min_replicas=1,
        max_replicas=1,
        train=TrainConfig(),
        script=(overhead_job.__file__, "regroup", str(steps), str(output)),
        directory=str(folder / "job"),
    )
    outcome = asyncio.run(LocalRun(desired).run())
    if outcome.result != "completed":
        raise RuntimeError(outcome.message)
    return dict(json.loads(output.read_text()))


main = command(plan, measure)

if __name__ == "__main__":
    main()
