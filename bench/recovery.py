"""How long a training stands still when something dies, freezes, hangs, comes or goes: regroup and its peers.

    make bench NAME=recovery [ARGS="--quick | --case CASE | --subject SUBJECT"]

Three nodes with a rank each, and a spare one: network namespaces on one bridge, so it needs root. All subjects train
the same tiny GPT on the same samples in the same order with a constant global batch, and save every 20 steps; 10 steps
after a save the fault comes. What is dead is replaced as an operator would, with the same delays for all.

- `rank-kill`: SIGKILL to rank 0. `pod-kill`: to the agent and the rank of rank 0's node.
- `rank0-node-loss`: power loss of rank 0's node: its link goes down first, so that nobody hears of the end.
- `node-frozen`: all that runs on rank 0's node is stopped (SIGSTOP). `network-cut`: its link goes down, it runs on.
- `one-way-cut`: what it sends arrives, what is sent to it does not.
- `hang`: rank 0 is stuck in its user's code.
- `coordinator-kill`: SIGKILL to what the workers meet at: coordinator, store, lighthouse; with stock settings
  torchrun's store is in its first agent.
- `join`: a third worker comes to two. `shrink`: two are wanted instead of three. `sigterm`: SIGTERM to the worker of
  rank 0. Where the agents know no planned shrink, it is SIGTERM to the third.

`recovered` is 1 where 20 more steps were committed within a minute, else 0; a peer that did not recover twice is not
run again. `detect_seconds`: until the first survivor acts. `down_seconds`: from the fault to the next step of the world
that follows; for the planned changes between the last step of the one and the first of the next; where the same world
goes on, what the longest pause in ten seconds is longer than those before. A step is committed that is in the final
history; `lost_steps` were done twice. `loss_difference`: the largest relative one from an undisturbed run of the same
subject, step by step. `installed` is 0 where a peer is not: `pip install torchft-nightly nvidia-resiliency-ext`, or
elsewhere and named by PYTHONPATH.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from bench import recovery_torchft
from bench.harness import RESULTS, Plan, Values, command
from bench.nodes import Nodes
from bench.outcome import FAILED, NOT_INSTALLED, UNITS, Fault, Step, after_world, loss_difference, same_world
from bench.recovery_faults import CASES, LIVES_ON, strike
from bench.recovery_regroup import POLICY, Regroup
from bench.recovery_settings import (
    BEYOND,
    HEARTBEAT_SECONDS,
    LEAST_WORKERS,
    PROGRESS_SECONDS,
    SAVE_EVERY,
    SILENCE_SECONDS,
    WORKERS,
)
from bench.recovery_subject import NODES, Subject
from bench.recovery_torchft import Torchft
from bench.recovery_torchrun import FT, STOCK, TUNED, Torchrun
from regroup_operator.torchrun import SETTINGS

START_SECONDS = 120.0
RECOVER_SECONDS = 60.0
WATCH_SECONDS = 10.0
"""A world that lives on is watched for so long."""
ENOUGH = 20
UNDISTURBED_STEPS, QUICK_UNDISTURBED_STEPS = 600, 80
ENOUGH_FAILURES = 2
POLL_SECONDS = 0.005

T = TypeVar("T")
COURSE = RESULTS / "recovery_course.json"
DRAWN = ("rank0-node-loss", "regroup")
SHOWN_SECONDS = 3.0

SUBJECTS: dict[str, Callable[[Nodes, Path, int], Subject]] = {
    "regroup": Regroup,
    "regroup-fsdp": lambda nodes, folder, workers: Regroup(nodes, folder, workers, "fsdp"),
    "torchrun": lambda nodes, folder, workers: Torchrun(nodes, folder, workers, STOCK),
    "torchrun-tuned": lambda nodes, folder, workers: Torchrun(nodes, folder, workers, TUNED),
    "ft_launcher": lambda nodes, folder, workers: Torchrun(nodes, folder, workers, FT),
    "torchft": Torchft,
}
NEEDS = {"ft_launcher": "nvidia_resiliency_ext", "torchft": "torchft"}
"""Subject -> a package that is not ours."""
DETECTORS = {
    "regroup": (
        f"{POLICY!r}; heartbeat {HEARTBEAT_SECONDS} s, lost after {SILENCE_SECONDS} s, hang after {PROGRESS_SECONDS} s"
    ),
    "torchrun": "defaults, with --local-addr",
    "torchrun-tuned": f"{SETTINGS}; collectives time out after {PROGRESS_SECONDS} s",
    "ft_launcher": f"{SETTINGS}; heartbeat timeout {PROGRESS_SECONDS} s",
    "torchft": recovery_torchft.SETTINGS,
}


def settings(_case: str, subject: str) -> str:
    """What the figures depend on."""
    detector = DETECTORS[subject.removesuffix("-fsdp")]
    return f"saves every {SAVE_EVERY} steps, fault {BEYOND} steps after one; {detector}"


def plan(quick: bool) -> Plan:
    """All cases five times; a quick run kills a rank of ours once."""
    if quick:
        return Plan("recovery", ("rank-kill-quick",), ("regroup",), UNITS, 1, settings)
    return Plan("recovery", tuple(CASES), tuple(SUBJECTS), UNITS, 5, settings)


_gone: Counter[tuple[str, str]] = Counter()
"""Runs of a case and subject that did not recover."""


def measure(case: str, subject: str) -> Values:
    """One fault. A peer that did not recover twice is not asked again: its rows tell the two runs."""
    if subject in NEEDS and find_spec(NEEDS[subject]) is None:
        return NOT_INSTALLED
    if _gone[case, subject] >= ENOUGH_FAILURES and not subject.startswith("regroup"):
        return {}
    reference = undisturbed(subject, case.endswith("-quick"))
    found = recover(case.removesuffix("-quick"), subject, reference) if reference else FAILED
    _gone[case, subject] += found["recovered"] == 0.0
    return found


def recover(case: str, subject: str, reference: Mapping[int, float]) -> Values:
    """What a fault does to a new training; `reference` has the loss of each step of an undisturbed one."""
    workers = LEAST_WORKERS if case == "join" else WORKERS
    with start(subject, workers) as training:
        wait(training, START_SECONDS, lambda: True if is_at_risk(training, workers) else None)
        fault = strike(training, case)
        try:
            found = wait(training, RECOVER_SECONDS, lambda: outcome(training, fault, case))
        except TimeoutError:
            return FAILED
        noticed = None if fault.planned else training.detected(fault.time)
        difference = loss_difference(training.steps, reference)
        found = {**found, "detect_seconds": noticed and noticed - fault.time, "loss_difference": difference}
        if (case, subject) == DRAWN:
            keep(training.steps, fault, found)
        return found


@contextmanager
def start(subject: str, workers: int) -> Iterator[Subject]:
    """A training on new nodes."""
    # What a killed process had started dies a moment after it, and may still write.
    with (
        tempfile.TemporaryDirectory(prefix="regroup-bench-", ignore_cleanup_errors=True) as folder,
        Nodes(NODES) as nodes,
    ):
        training = SUBJECTS[subject](nodes, Path(folder), workers)
        try:
            yield training
        finally:
            training.close()


def keep(steps: Sequence[Step], fault: Fault, found: Values) -> None:
    """Write the course of a recovery, for the picture."""
    near = [step for step in steps if -SHOWN_SECONDS < step.time - fault.time < 2 * SHOWN_SECONDS]
    points = [[round(step.time - fault.time, 4), step.step, step.world] for step in near]
    COURSE.write_text(json.dumps({**found, "steps": points}) + "\n")


@cache
def undisturbed(subject: str, quick: bool) -> dict[int, float]:
    """Step -> loss of a run to which nothing happens; empty where it does not even train."""
    steps = QUICK_UNDISTURBED_STEPS if quick else UNDISTURBED_STEPS
    with start(subject, WORKERS) as training:
        try:
            wait(training, 2 * START_SECONDS, lambda: len(training.steps) >= steps or None)
        except TimeoutError:
            return {}
        return {step.step: step.loss for step in training.steps}


def wait(training: Subject, seconds: float, condition: Callable[[], T | None]) -> T:
    """Play the operator until there is something. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        training.keep()
        training.look()
        found = condition()
        if found is not None:
            return found
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"nothing within {seconds:.0f} s: see {training.folder}")


def is_at_risk(training: Subject, workers: int) -> bool:
    """Whether the whole world trains, and has steps beyond the newest save."""
    newest = training.steps[-1].step if training.steps else 0
    return newest > SAVE_EVERY and newest % SAVE_EVERY >= BEYOND and training.world_size() == workers


def outcome(training: Subject, fault: Fault, case: str) -> Values | None:
    """What the fault did, as soon as it can be told."""
    found = after_world(training.steps, fault, ENOUGH)
    until = fault.time + WATCH_SECONDS
    if found is None and case in LIVES_ON and time.time() > until:
        found = same_world(training.steps, fault, until, ENOUGH)
    return found


main = command(plan, measure)

if __name__ == "__main__":
    main()
