"""Tokens per second of a GPT of a million parameters on two ranks, as a share of a bare DDP or FSDP2 script's.

    make bench NAME=throughput [ARGS=--quick]

The bare script runs just before each subject. `ran` is 0 where a subject is not installed or cannot do the case here.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from bench import throughput_job
from bench.harness import Plan, Values, command

STEPS, QUICK_STEPS = 300, 12
UNITS = {"ratio_to_bare": "ratio", "tokens_per_second": "1/s", "ran": "ratio"}
DDP_ONLY = ("accelerate", "lightning")


def plan(quick: bool) -> Plan:
    """Both strategies five times; a quick run tries ours once, for a few steps."""
    if quick:
        return Plan("throughput", ("ddp-1m-quick",), ("regroup",), UNITS, 1)
    return Plan("throughput", ("ddp-1m", "fsdp-1m"), ("regroup", *DDP_ONLY), UNITS, 5)


def measure(case: str, subject: str) -> Values:
    """The bare script and the subject, one after the other."""
    strategy, steps = case.partition("-")[0], QUICK_STEPS if case.endswith("quick") else STEPS
    if subject in DDP_ONLY and (strategy == "fsdp" or find_spec(subject) is None):
        return {"ran": 0.0}
    with tempfile.TemporaryDirectory(prefix="regroup-bench-") as folder:
        base = run("bare", strategy, steps, Path(folder))
        found = run(subject, strategy, steps, Path(folder))
    return {"ratio_to_bare": found / base, "tokens_per_second": found, "ran": 1.0}


def run(subject: str, strategy: str, steps: int, folder: Path) -> float:
    """Tokens per second. Raises subprocess.CalledProcessError."""
    output = folder / subject
    job = [throughput_job.__file__, subject, strategy, str(steps), str(output)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*torchrun, *job], check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return float(output.read_text())


main = command(plan, measure)

if __name__ == "__main__":
    main()
