"""Two trainings that take turns, block by block: both meet the same machine, however its speed
changes.

Each rank waits where a block ends, until its own pipe signals the turn of its
training. Rank 0 then adds the mean seconds of a step to the file FOLDER/SIDE. Torch-free.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.recovery_settings import PYTHON_PATH
from regroup.local.processes import dies_with, kill_with_descendants

RANKS = 2
WARM_STEPS = 5
"""Of each block: they fill the caches and are not counted."""
START_SECONDS, BLOCK_SECONDS = 180.0, 120.0


class EndedError(Exception):
    """A training ended before its turns were over."""


class Turns:
    """The turns of a rank: `tick` is called after each step, and waits where a block ends."""

    def __init__(self, side: str, steps: int, folder: Path) -> None:
        self._pipe = pipe(folder, side, int(os.environ["RANK"]))
        self._results = folder / side if os.environ["RANK"] == "0" else None
        self._steps = steps
        self._done = -1  # the very first step builds what the others use
        self._begun = 0.0

    def tick(self) -> None:
        """A step is over."""
        self._done += 1
        if self._done == WARM_STEPS + self._steps:
            self._record((time.perf_counter() - self._begun) / self._steps)
            self._done = 0
        if self._done == 0:
            self._pipe.read_text()
        if self._done == WARM_STEPS:
            self._begun = time.perf_counter()

    def _record(self, seconds: float) -> None:
        if self._results is not None:
            with self._results.open("a") as file:
                file.write(f"{seconds}\n")


def steps_for(pairs: int, steps: int) -> int:
    """Steps that a training must have before it, so as not to end by itself before its last block
    has.
    """
    return 1 + (pairs + 1) * (WARM_STEPS + steps)


def make_pipes(folder: Path, sides: Sequence[str]) -> None:
    """Call it before the trainings begin."""
    for side in sides:
        for rank in range(RANKS):
            os.mkfifo(pipe(folder, side, rank))


def pipe(folder: Path, side: str, rank: int) -> Path:
    """The pipe that signals a rank its turn."""
    return folder / f"{side}-{rank}.pipe"


def take_turns(
    folder: Path,
    sides: tuple[str, str],
    pairs: int,
    living: Sequence[subprocess.Popen[bytes]],
    before: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[float, float]]:
    """Seconds of a step of both sides, in so many pairs of blocks; the one that begins changes.

    `before` is called with the side whose turn it is. Raises TimeoutError, and EndedError where one
    of `living` ends.
    """
    for number in range(pairs):
        seconds = {}
        for side in sides if number % 2 == 0 else reversed(sides):
            before(side)
            seconds[side] = _block(folder, side, number, living)
        yield seconds[sides[0]], seconds[sides[1]]


def _block(
    folder: Path, side: str, number: int, living: Sequence[subprocess.Popen[bytes]]
) -> float:
    deadline = time.monotonic() + (START_SECONDS if number == 0 else BLOCK_SECONDS)
    waiting = {pipe(folder, side, rank) for rank in range(RANKS)}
    results = folder / side
    while time.monotonic() < deadline:
        waiting = {path for path in waiting if not _start_block(path)}
        found = results.read_text().split() if results.exists() else []
        if len(found) > number:
            return float(found[number])
        if any(process.poll() is not None for process in living):
            logs = "\n".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
            raise EndedError(f"a process has ended:\n{logs}")
        time.sleep(0.05)
    raise TimeoutError(f"block {number} of {side} did not end")


def _start_block(path: Path) -> bool:
    """Begin the block of a rank; False while it does not wait for that."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # no rank reads
        return False
    os.close(descriptor)  # which ends the file that it reads
    return True


@contextmanager
def started(
    command: Sequence[str], log: Path, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to `log`; at the end it and its children are killed."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": PYTHON_PATH, **variables},
            cwd=log.parent,
            stdout=output,
            stderr=output,
            # One prctl and one getppid, both already resolved: safe between fork and exec.
            preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509
        )
    try:
        yield process
    finally:
        kill_with_descendants(process)
