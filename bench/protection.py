"""What all protection together costs while nothing fails: the time of a step with it, by that without it.

    make bench NAME=protection [ARGS=--quick]

Two ranks train a GPT of a million parameters, in blocks of steps that take turns. On: a job of two agents and a
coordinator, with heartbeats, reports, commit collective, history, checkpoint hooks and memory snapshots as they are by
default. Off: a bare script with DDP or FSDP2, as torch's documentation has it, which nobody looks after; while it has
its turn, agents and coordinator are stopped. `step_time_ratio` is the median over the pairs of blocks, `ratio_low` and
`ratio_high` bound it with 95 % confidence (sign test).
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Plan, Values, command
from bench.paired import median_interval
from regroup.local import RANK_ENTRY
from regroup.processes import (
    ADDRESS,
    LocalProcess,
    Place,
    descendants,
    dies_with,
    kill_process,
    start_agent,
    start_coordinator,
)
from regroup_trainer.config import TrainConfig
from regroup_trainer.contract import Desired

ON, OFF = "regroup", "bare"
RANKS = 2
PAIRS, STEPS = 21, 60
QUICK_PAIRS, QUICK_STEPS = 6, 5
START_SECONDS, BLOCK_SECONDS = 180.0, 120.0
ROOT = Path(__file__).resolve().parent.parent
JOB = str(Path(__file__).with_name("protection_job.py"))
UNITS = {"step_time_ratio": "ratio", "ratio_low": "ratio", "ratio_high": "ratio", "pairs": "count"}


def settings(_case: str, _subject: str) -> str:
    """What the figures depend on."""
    return f"{PAIRS} pairs of blocks of {STEPS} steps"


def plan(quick: bool) -> Plan:
    """Both strategies once, in many pairs of blocks; a quick run has few and short ones."""
    if quick:
        return Plan("protection", ("ddp-1m-quick",), (ON,), UNITS, 1)
    return Plan(
        "protection", ("ddp-1m", "fsdp-1m"), (ON,), UNITS, 1, lambda _case, _subject: f"blocks of {STEPS} steps"
    )


def measure(case: str, _subject: str) -> Values:
    """All pairs of blocks."""
    quick = case.endswith("quick")
    pairs, steps = (QUICK_PAIRS, QUICK_STEPS) if quick else (PAIRS, STEPS)
    strategy = case.partition("-")[0]
    with tempfile.TemporaryDirectory(prefix="regroup-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for subject in (ON, OFF):
            for rank in range(RANKS):
                os.mkfifo(pipe(folder, subject, rank))
        arguments = (strategy, str(pairs + 2), str(steps), name)  # one to warm up, one that never comes
        with protected(folder, arguments) as guards, bare(folder, arguments) as ranks:
            _, *ratios = take_turns(folder, guards, ranks, pairs + 1)
    found = median_interval(ratios)
    return {
        "step_time_ratio": found.median,
        "ratio_low": found.low,
        "ratio_high": found.high,
        "pairs": float(len(ratios)),
    }


def take_turns(
    folder: Path, guards: list[LocalProcess], ranks: list[subprocess.Popen[bytes]], pairs: int
) -> Iterator[float]:
    """The ratio of each pair; the one that begins changes."""
    for number in range(pairs):
        seconds = {}
        for subject in (ON, OFF) if number % 2 == 0 else (OFF, ON):
            for guard in guards:
                guard.popen.send_signal(signal.SIGCONT if subject == ON else signal.SIGSTOP)
            seconds[subject] = block(folder, subject, number, [*(guard.popen for guard in guards), *ranks])
        yield seconds[ON] / seconds[OFF]


def block(folder: Path, subject: str, number: int, living: list[subprocess.Popen[bytes]]) -> float:
    """Seconds of a step. Raises TimeoutError, and RuntimeError where a process has ended."""
    deadline = time.monotonic() + (START_SECONDS if number == 0 else BLOCK_SECONDS)
    waiting = {pipe(folder, subject, rank) for rank in range(RANKS)}
    results = folder / subject
    while time.monotonic() < deadline:
        waiting = {path for path in waiting if not told(path)}
        found = results.read_text().split() if results.exists() else []
        if len(found) > number:
            return float(found[number])
        if any(process.poll() is not None for process in living):
            logs = "\n".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
            raise RuntimeError(f"a process has ended:\n{logs}")
        time.sleep(0.05)
    raise TimeoutError(f"block {number} of {subject} did not end")


def pipe(folder: Path, subject: str, rank: int) -> Path:
    """By which a rank is told that it is its turn."""
    return folder / f"{subject}-{rank}.pipe"


def told(path: Path) -> bool:
    """Begin the block of a rank; False while it does not wait for that."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # nobody reads
        return False
    os.close(descriptor)  # which ends the file that it reads
    return True


@contextmanager
def protected(folder: Path, arguments: tuple[str, ...]) -> Iterator[list[LocalProcess]]:
    """Coordinator and agents of a job, with all that is on by default."""
    token = folder / "token"
    token.write_text(secrets.token_hex(16))
    place = Place(
        job="protection",
        port=free_port(),
        token_file=token,
        logs=folder,
        ranks=1,
        threads=1,
        entry=RANK_ENTRY,
        working_directory=folder,
        variables={"PYTHONPATH": str(ROOT)},
    )
    desired = Desired(
        revision=1,
        namespace="bench",
        job=place.job,
        replicas=RANKS,
        min_replicas=RANKS,
        max_replicas=RANKS,
        progress_timeout_seconds=3600,  # it waits for its turns
        train=TrainConfig(),
        script=(JOB, ON, *arguments),
        directory=str(folder / "job"),
    )
    guards = [start_coordinator(place, 1, desired), *(start_agent(place, index, index) for index in range(RANKS))]
    try:
        yield guards
    finally:
        for guard in guards:
            guard.kill()


@contextmanager
def bare(folder: Path, arguments: tuple[str, ...]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Ranks that nobody looks after."""
    meeting = {"MASTER_ADDR": ADDRESS, "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS)}
    variables = {**os.environ, **meeting, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with (folder / "bare.log").open("ab") as log:
        ranks = [
            subprocess.Popen(
                [sys.executable, JOB, OFF, *arguments],
                env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=log,
                stderr=log,
                preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - one prctl and one getppid, both already resolved
            )
            for rank in range(RANKS)
        ]
    try:
        yield ranks
    finally:
        for process in ranks:
            for pid in [process.pid, *descendants(process.pid)]:
                kill_process(pid)
            process.wait()


def free_port() -> int:
    """On loopback."""
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


main = command(plan, measure)

if __name__ == "__main__":
    main()
