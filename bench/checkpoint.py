"""The cost of a checkpoint for the training: Regroup and torch's own ways, with 512 MiB of state.

    make bench NAME=checkpoint [ARGS=--quick]

Ranks train a stack of linear layers with AdamW; parameters and optimizer state are 512 MiB over all
ranks, each rank holding its share (FSDP2 where there are several). They occupy half of the cores,
or all. Each subject has processes of its own, in which blocks of the same steps without and with a
save alternate, so that a drift of the machine hits both.

- lost_seconds: the time of a block with a save minus that of the block beside it without, the
  median of the pairs
- blocking_seconds: how long a save blocked the training thread, the longest of all saves
  (the first included)
- durable_seconds: from the decision until the bytes are on the device, the median

`raw-write` is a plain write and fsync of as many bytes. What does not flush by itself
(`torch.save`) is flushed for durable_seconds alone, in one more save.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.harness import Plan, Values, command

MIB = 1 << 20
SUBJECTS = ("regroup", "dcp.save", "dcp.async_save", "torch.save", "raw-write")
CASES = ("512MiB-half-cores", "512MiB-all-cores")
QUICK_CASE = "8MiB-all-cores"
UNITS = {"lost_seconds": "s", "blocking_seconds": "s", "durable_seconds": "s"}
PAIRS, QUICK_PAIRS = 7, 1
"""Pairs of blocks: one without a save, one with."""
SECONDS, QUICK_SECONDS = 2.5, 0.2
"""Length of a block. Most saves end within it. A short block has less noise from the machine."""
_TIMEOUT_SECONDS = 900.0


def plan(quick: bool) -> Plan:
    """Each case three times; a quick run saves a small state."""
    if quick:
        return Plan("checkpoint", (QUICK_CASE,), SUBJECTS, UNITS, 1)
    return Plan("checkpoint", CASES, SUBJECTS, UNITS, 3)


def ranks_of(case: str, cores: int) -> int:
    """The number of ranks of a case; each rank has one thread."""
    return max(1, cores // 2) if case.endswith("half-cores") else cores


def measure(case: str, subject: str) -> Values:
    """Start the ranks of a subject, which train and save. Raises RuntimeError if a rank fails."""
    ranks = ranks_of(case, len(os.sched_getaffinity(0)))
    size = int(case.split("MiB", maxsplit=1)[0]) * MIB
    with tempfile.TemporaryDirectory(prefix="regroup-bench-") as folder:
        pairs, seconds = (QUICK_PAIRS, QUICK_SECONDS) if case == QUICK_CASE else (PAIRS, SECONDS)
        options = [subject, str(size), folder, str(pairs), str(seconds), str(ranks)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.checkpoint_rank", *options, str(rank)],
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )
            for rank in range(ranks)
        ]
        try:
            codes = [process.wait(_TIMEOUT_SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            raise RuntimeError(f"{subject}: ranks ended with {codes}")
        values: Values = json.loads((Path(folder) / "values.json").read_text())
    return values


main = command(plan, measure)

if __name__ == "__main__":
    main()
