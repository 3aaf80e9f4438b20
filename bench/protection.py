"""The cost of all fault tolerance while nothing fails: the ratio of the step time with it to the
step time without it.

    make bench NAME=protection [ARGS=--quick]

Two ranks train a GPT of a million parameters, with protection and without. Both take turns, in
blocks of steps.

- On: a job of two agents and a coordinator. Heartbeats, reports, commit collective, history,
  checkpoint hooks and memory snapshots are as they are by default.
- Off: a bare script with DDP or FSDP2, as torch's documentation has it, without any supervision.
  During its turn, agents and coordinator are stopped.

`step_time_ratio` of a run is the median over its pairs of blocks. The speed of a script differs
more between starts than between blocks, so each run starts all anew. The least and the greatest of
six runs bound the median with 97 % confidence (sign test).
"""

from __future__ import annotations

import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import throughput_job
from bench.harness import Plan, Values, command
from bench.recovery_settings import PYTHON_PATH
from bench.turns import RANKS, make_pipes, started, take_turns
from regroup.local.processes import (
    ADDRESS,
    LocalProcess,
    Place,
    start_agent,
    start_coordinator,
)
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.environment import RANK_ENTRY
from regroup_trainer.system.machine_address import free_port

ON, OFF = "regroup", "bare"
STARTS, PAIRS, STEPS = 6, 7, 30
QUICK_PAIRS, QUICK_STEPS = 2, 5
JOB = throughput_job.__file__
UNITS = {"step_time_ratio": "ratio"}


def plan(quick: bool) -> Plan:
    """Both strategies, in many pairs of blocks; a quick run has few and short ones."""
    if quick:
        return Plan("protection", ("ddp-1m-quick",), (ON,), UNITS, 1)
    settings = f"{PAIRS} pairs of blocks of {STEPS} steps a run"
    return Plan(
        "protection", ("ddp-1m", "fsdp-1m"), (ON,), UNITS, STARTS, lambda _case, _subject: settings
    )


def measure(case: str, _subject: str) -> Values:
    """The pairs of blocks of one start."""
    quick = case.endswith("quick")
    pairs, steps = (QUICK_PAIRS, QUICK_STEPS) if quick else (PAIRS, STEPS)
    strategy = case.partition("-")[0]
    with tempfile.TemporaryDirectory(prefix="regroup-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        make_pipes(folder, (ON, OFF))
        arguments = (strategy, str(pairs + 1), str(steps), name)
        with protected(folder, arguments) as guards, bare(folder, arguments) as ranks:

            def wake(side: str) -> None:
                for guard in guards:
                    guard.popen.send_signal(signal.SIGCONT if side == ON else signal.SIGSTOP)

            living = [*(guard.popen for guard in guards), *ranks]
            _, *found = take_turns(
                folder, (ON, OFF), pairs + 1, living, wake
            )  # the first one warms up
    return {"step_time_ratio": statistics.median(on / off for on, off in found)}


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
        variables={"PYTHONPATH": PYTHON_PATH},
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
    guards = [
        start_coordinator(place, 1, desired),
        *(start_agent(place, index, index) for index in range(RANKS)),
    ]
    try:
        yield guards
    finally:
        for guard in guards:
            guard.kill()


@contextmanager
def bare(folder: Path, arguments: tuple[str, ...]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Ranks without supervision."""
    meeting = {"MASTER_ADDR": ADDRESS, "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS)}
    variables = {**meeting, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, JOB, OFF, *arguments]
    with ExitStack() as ranks:
        yield [
            ranks.enter_context(
                started(
                    command, folder / "bare.log", **variables, RANK=str(rank), LOCAL_RANK=str(rank)
                )
            )
            for rank in range(RANKS)
        ]


main = command(plan, measure)

if __name__ == "__main__":
    main()
