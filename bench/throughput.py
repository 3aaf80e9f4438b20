"""Tokens per second of a GPT of a million parameters on two ranks, as a share of a bare DDP or
FSDP2 script's.

    make bench NAME=throughput [ARGS=--quick]

Each subject takes turns with the bare script, block by block, both under torchrun. `ratio_to_bare`
of a run is the median over its pairs of blocks. The speed of a script differs more between starts
than between blocks, so each run starts both anew. The least and the greatest of six runs bound the
median with 97 % confidence (sign test).

`ran` is 0 where a subject is not installed or cannot do the case here. The row then has the reason,
with the subject's error message if there is one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from bench import throughput_job
from bench.harness import Plan, Values, command
from bench.throughput_job import BATCH, LENGTH
from bench.turns import RANKS, EndedError, make_pipes, started, take_turns

BARE = "bare"
STARTS, PAIRS, STEPS = 6, 6, 20
QUICK_PAIRS, QUICK_STEPS = 2, 3
UNITS = {"ratio_to_bare": "ratio", "tokens_per_second": "1/s", "ran": "ratio"}
PEERS = ("accelerate", "lightning")
_MESSAGE_LENGTH = 160
"""Longest part of a subject's error message, in characters."""


class Throughput:
    """The measurements of one run of the benchmark, and why subjects did not take part."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[str, str], str] = {}

    def plan(self, quick: bool) -> Plan:
        """Both strategies, in many pairs of blocks; a quick run tries Regroup and accelerate."""
        if quick:
            return Plan(
                "throughput", ("fsdp-1m-quick",), ("regroup", "accelerate"), UNITS, 1, self.settings
            )
        return Plan(
            "throughput", ("ddp-1m", "fsdp-1m"), ("regroup", *PEERS), UNITS, STARTS, self.settings
        )

    def measure(self, case: str, subject: str) -> Values:
        """The pairs of blocks of one start of the bare script and the subject.

        A subject that failed a case is not run again.
        """
        if (case, subject) in self._reasons:
            return {}
        if subject in PEERS and find_spec(subject) is None:
            return self._did_not_run(case, subject, "not installed")
        strategy, quick = case.partition("-")[0], case.endswith("quick")
        pairs, steps = (QUICK_PAIRS, QUICK_STEPS) if quick else (PAIRS, STEPS)
        with tempfile.TemporaryDirectory(
            prefix="regroup-bench-", ignore_cleanup_errors=True
        ) as folder:
            try:
                found = measure_pairs(subject, strategy, pairs, steps, Path(folder))
            except EndedError:
                return self._did_not_run(
                    case, subject, last_error((Path(folder) / f"{subject}.log").read_text())
                )
        return {
            "ratio_to_bare": statistics.median(bare / own for own, bare in found),
            "tokens_per_second": RANKS
            * BATCH
            * LENGTH
            / statistics.median(own for own, _ in found),
            "ran": 1.0,
        }

    def settings(self, case: str, subject: str) -> str:
        """Why a subject did not run a case; where it did, what its figures depend on."""
        return self._reasons.get((case, subject), f"{PAIRS} pairs of blocks of {STEPS} steps a run")

    def _did_not_run(self, case: str, subject: str, reason: str) -> Values:
        self._reasons[case, subject] = reason
        return {"ran": 0.0}


def measure_pairs(
    subject: str, strategy: str, pairs: int, steps: int, folder: Path
) -> list[tuple[float, float]]:
    """Seconds of a step of the subject and of the bare script, by pair. Raises EndedError,
    TimeoutError.
    """
    make_pipes(folder, (subject, BARE))
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={RANKS}",
    ]
    own, bare = (
        started(
            [
                *torchrun,
                throughput_job.__file__,
                side,
                strategy,
                str(pairs + 1),
                str(steps),
                str(folder),
            ],
            folder / f"{side}.log",
        )
        for side in (subject, BARE)
    )
    with own as one, bare as other:
        _, *found = take_turns(
            folder, (subject, BARE), pairs + 1, [one, other]
        )  # the first one warms up
    return found


def last_error(text: str) -> str:
    """The first exception in the output of torchrun."""
    lines = [line.partition("]: ")[2] or line for line in text.splitlines()]
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return (errors or lines or ["the subject printed nothing"])[0][:_MESSAGE_LENGTH]


throughput = Throughput()
main = command(throughput.plan, throughput.measure)

if __name__ == "__main__":
    main()
