"""One side of bench/protection.py: a training that takes turns with another one, block by block.

    python bench/protection_job.py SUBJECT STRATEGY BLOCKS STEPS FOLDER

It trains as bench/throughput_job.py does. A block begins when something is written to this rank's pipe, and rank 0 adds
the mean seconds of a step to FOLDER/SUBJECT.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from bench.protection import pipe
from bench.throughput_job import SUBJECTS

WARM_STEPS = 5
"""Of each block: they fill the caches and are not counted."""


class Turns:
    """Called after each step; waits where a block ends."""

    def __init__(self, subject: str, steps: int, folder: Path) -> None:
        self._pipe = pipe(folder, subject, int(os.environ["RANK"]))
        self._results = folder / subject if os.environ["RANK"] == "0" else None
        self._steps = steps
        self._done = -1  # the very first step builds what the others use
        self._begun = 0.0

    def tick(self) -> None:
        """A step is over."""
        self._done += 1
        if self._done == WARM_STEPS + self._steps:
            self._tell((time.perf_counter() - self._begun) / self._steps)
            self._done = 0
        if self._done == 0:
            self._pipe.read_text()
        if self._done == WARM_STEPS:
            self._begun = time.perf_counter()

    def _tell(self, seconds: float) -> None:
        if self._results is not None:
            with self._results.open("a") as file:
                file.write(f"{seconds}\n")


def main(subject: str, strategy: str, blocks: int, steps: int, folder: Path) -> None:
    """Train for so many blocks."""
    torch.set_num_threads(1)
    turns = Turns(subject, steps, folder)
    SUBJECTS[subject](strategy, 1 + blocks * (WARM_STEPS + steps), turns.tick)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
