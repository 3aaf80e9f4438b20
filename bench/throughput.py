"""Tokens per second of a GPT of a million parameters on two ranks, as a share of a bare DDP or FSDP2 script's.

    make bench NAME=throughput [ARGS=--quick]

The bare script runs just before each subject. `ran` is 0 where a subject is not installed or cannot do the case here;
the row then says why, in the subject's own words where it has any.
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
PEERS = ("accelerate", "lightning")
_WORDS = 160
"""Characters of a subject's own words."""


class DidNotRunError(Exception):
    """A subject gave up; its own words say why."""


class Throughput:
    """The measurements of one run of the benchmark, and why subjects did not take part."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[str, str], str] = {}

    def plan(self, quick: bool) -> Plan:
        """Both strategies five times; a quick run tries ours once, for a few steps, and who shards by other means."""
        if quick:
            return Plan("throughput", ("fsdp-1m-quick",), ("regroup", "accelerate"), UNITS, 1, self.reason)
        return Plan("throughput", ("ddp-1m", "fsdp-1m"), ("regroup", *PEERS), UNITS, 5, self.reason)

    def measure(self, case: str, subject: str) -> Values:
        """The bare script and the subject, one after the other."""
        if subject in PEERS and find_spec(subject) is None:
            return self._did_not_run(case, subject, "not installed")
        strategy, steps = case.partition("-")[0], QUICK_STEPS if case.endswith("quick") else STEPS
        with tempfile.TemporaryDirectory(prefix="regroup-bench-") as folder:
            base = run("bare", strategy, steps, Path(folder))
            try:
                found = run(subject, strategy, steps, Path(folder))
            except DidNotRunError as error:
                return self._did_not_run(case, subject, str(error))
        return {"ratio_to_bare": found / base, "tokens_per_second": found, "ran": 1.0}

    def reason(self, case: str, subject: str) -> str:
        """Why a subject did not run a case; empty where it did."""
        return self._reasons.get((case, subject), "")

    def _did_not_run(self, case: str, subject: str, reason: str) -> Values:
        self._reasons[case, subject] = reason
        return {"ran": 0.0}


def run(subject: str, strategy: str, steps: int, folder: Path) -> float:
    """Tokens per second. Raises DidNotRunError."""
    output, said = folder / subject, folder / f"{subject}-said"
    job = [throughput_job.__file__, subject, strategy, str(steps), str(output)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with said.open("w") as errors:
        done = subprocess.run([*torchrun, *job], check=False, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors)
    if done.returncode:
        raise DidNotRunError(last_error(said.read_text()))
    return float(output.read_text())


def last_error(text: str) -> str:
    """The first rank's last words in what torchrun printed: its exception."""
    lines = [line.partition("]: ")[2] or line for line in text.splitlines()]
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return (errors or lines or ["it said nothing"])[0][:_WORDS]


throughput = Throughput()
main = command(throughput.plan, throughput.measure)

if __name__ == "__main__":
    main()
