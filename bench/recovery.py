"""How long a training pauses when a part fails, freezes, hangs, joins or leaves: Regroup and its
peers.

    make bench NAME=recovery [ARGS="--quick | --case CASE | --subject SUBJECT"]

Three nodes with a rank each, and a spare one: network namespaces on one bridge, so it needs root.
All subjects train the same tiny GPT on the same samples in the same order with a constant global
batch, and save every 20 steps. The fault comes 1 to 19 steps after a save: drawn for each run of a
case, all subjects alike, so that no one's snapshots are in step with it. What is dead is replaced
as an operator would, with the same delays for all.

- `rank-kill`: SIGKILL to rank 0. `pod-kill`: to the agent and the rank of rank 0's node.
- `rank0-node-loss`: power loss of rank 0's node: its link goes down first, so that no peer sees its
  connections close.
- `node-frozen`: all that runs on rank 0's node is stopped (SIGSTOP). `network-cut`: its link goes
  down, it runs on.
- `one-way-cut`: what it sends arrives, what is sent to it does not.
- `hang`: rank 0 is stuck in its user's code.
- `coordinator-kill`: SIGKILL to what the workers meet at: coordinator, store, lighthouse; with
  stock settings torchrun's store is in its first agent.
- `join`: a third worker comes to two. `shrink`: the job is resized from three to two. `sigterm`:
  SIGTERM to the worker of rank 0. Where the agents know no planned shrink, it is SIGTERM to the
  third.

`recovered` is 1 where 20 more steps were committed within a minute, else 0. `detect_seconds`: until
the first part that was not struck itself acts. `down_seconds`: from the fault to the next step of
the generation that follows; for a planned change, between the last step of the one and the first
of the next. Where the same generation goes on, it is the longest pause in ten seconds minus the
median one before. A step is committed that is in the final history; `lost_steps` were done twice.
`loss_difference`: the largest relative one from an undisturbed run of the same subject, step by
step. `trains` is 0 for a run that twice did not come to its fault, or to the end of the undisturbed
run. `installed` is 0 where a peer is not: `pip install torchft-nightly nvidia-resiliency-ext`, or
elsewhere and named by PYTHONPATH.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from bench import recovery_torchft
from bench.harness import Plan, Values, command
from bench.nodes import Nodes
from bench.outcome import (
    DOES_NOT_TRAIN,
    FAILED,
    NOT_INSTALLED,
    UNITS,
    Fault,
    Step,
    after_new_generation,
    loss_difference,
    within_same_generation,
)
from bench.recovery_faults import CASES, LIVES_ON, strike
from bench.recovery_regroup import POLICY, Regroup
from bench.recovery_settings import (
    HEARTBEAT_SECONDS,
    LEAST_WORKERS,
    LOST_SECONDS,
    REPLACE_NODE_SECONDS,
    REPLACE_SECONDS,
    SAVE_EVERY,
    WORKERS,
)
from bench.recovery_subject import NODES, NotTrainingError, Subject
from bench.recovery_torchft import Torchft
from bench.recovery_torchrun import FT, STOCK, TUNED, Torchrun
from regroup_operator.render.torchrun_commands import SETTINGS

START_SECONDS = 120.0
RECOVER_SECONDS = 60.0
WATCH_SECONDS = 10.0
"""How long a generation that continues is observed."""
ENOUGH = 20
UNDISTURBED_STEPS, QUICK_UNDISTURBED_STEPS = 600, 80
TRIES = 2
POLL_SECONDS = 0.005

S = TypeVar("S", bound=Subject)
T = TypeVar("T")
COURSE = "recovery_course.json"
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
        f"{POLICY!r}; heartbeat {HEARTBEAT_SECONDS} s, lost after {LOST_SECONDS} s, hang after "
        f"{LOST_SECONDS} s"
    ),
    "torchrun": "defaults, with --local-addr",
    "torchrun-tuned": f"{SETTINGS}; collectives time out after {LOST_SECONDS} s",
    "ft_launcher": f"{SETTINGS}; heartbeat timeout {LOST_SECONDS} s, for the first one 60 s",
    "torchft": recovery_torchft.SETTINGS,
}


def settings(_case: str, subject: str) -> str:
    """What the figures depend on."""
    fault = (
        f"fault 1 to {SAVE_EVERY - 1} steps after one, drawn by case and run; recovered within "
        f"{RECOVER_SECONDS} s"
    )
    return f"{conditions(subject)}; {fault}"


def conditions(subject: str) -> str:
    """The conditions under which a subject trains."""
    replaced = (
        f"the dead replaced after {REPLACE_SECONDS} s, on another node after "
        f"{REPLACE_NODE_SECONDS} s"
    )
    return f"{DETECTORS[subject.removesuffix('-fsdp')]}; {replaced}; saves every {SAVE_EVERY} steps"


def plan(quick: bool) -> Plan:
    """All cases five times; a quick run kills a rank of ours once."""
    if quick:
        return Plan("recovery", ("rank-kill-quick",), ("regroup",), UNITS, 1, settings)
    return Plan("recovery", tuple(CASES), tuple(SUBJECTS), UNITS, 5, settings)


_runs: dict[tuple[str, str], Iterator[int]] = defaultdict(lambda: itertools.count(1))
_courses: list[dict[str, Any]] = []
"""The courses of the runs for the picture."""


def measure(case: str, subject: str) -> Values:
    """Inject one fault."""
    if subject in NEEDS and find_spec(NEEDS[subject]) is None:
        return NOT_INSTALLED
    quick, bare = case.endswith("-quick"), case.removesuffix("-quick")
    after_save = steps_after_save(bare, next(_runs[case, subject]))
    return tried(lambda: recover(bare, subject, after_save, undisturbed(subject, quick)))


def tried(run: Callable[[], Values]) -> Values:
    """A run, and another where it did not come to its faults: a start may be slow once."""
    for _ in range(TRIES):
        try:
            return run()
        except NotTrainingError as error:
            print(error, file=sys.stderr)
    return DOES_NOT_TRAIN


def steps_after_save(case: str, run: int) -> int:
    """How long after a save the fault of a run comes, whatever the subject."""
    return random.Random(f"{case} {run}").randrange(1, SAVE_EVERY)


def recover(case: str, subject: str, after_save: int, reference: Mapping[int, float]) -> Values:
    """What a fault does to a new training; `reference` has the loss of each step of an undisturbed
    one.

    Raises NotTrainingError where it does not come so far.
    """
    workers = LEAST_WORKERS if case == "join" else WORKERS
    with start(subject, workers) as training:
        newest = wait(training, START_SECONDS, lambda: trained(training, workers))
        due = newest - newest % SAVE_EVERY + SAVE_EVERY + after_save
        wait(training, START_SECONDS, lambda: trained(training, workers, due))
        fault = strike(training, case)
        try:
            found = wait(training, RECOVER_SECONDS, lambda: outcome(training, fault, case))
        except NotTrainingError:
            return FAILED
        noticed = None if fault.planned else training.detected(fault.time)
        difference = loss_difference(training.steps, reference)
        found = {
            **found,
            "detect_seconds": noticed and noticed - fault.time,
            "loss_difference": difference,
        }
        if (case, subject) == DRAWN:
            keep(training.steps, fault, found)
        return found


def start(subject: str, workers: int) -> AbstractContextManager[Subject]:
    """A training of a subject on new nodes."""
    return started(lambda nodes, folder: SUBJECTS[subject](nodes, folder, workers))


@contextmanager
def started(make: Callable[[Nodes, Path], S]) -> Iterator[S]:
    """A training on new nodes; `make` gets them and a folder."""
    # What a killed process had started dies a moment after it, and may still write.
    with (
        tempfile.TemporaryDirectory(prefix="regroup-bench-", ignore_cleanup_errors=True) as folder,
        Nodes(NODES) as nodes,
    ):
        training = make(nodes, Path(folder))
        try:
            yield training
        finally:
            training.close()


def keep(steps: Sequence[Step], fault: Fault, found: Values) -> None:
    """Record the course of a recovery."""
    near = [step for step in steps if -SHOWN_SECONDS < step.time - fault.time < 2 * SHOWN_SECONDS]
    points = [[round(step.time - fault.time, 4), step.step, step.generation] for step in near]
    _courses.append({**found, "steps": points})


def write_course(folder: Path) -> None:
    """Write the course with the median down time, for the picture."""
    if _courses:
        middle = statistics.median_low(course["down_seconds"] for course in _courses)
        chosen = next(course for course in _courses if course["down_seconds"] == middle)
        (folder / COURSE).write_text(json.dumps(chosen) + "\n")


@cache
def undisturbed(subject: str, quick: bool) -> dict[int, float]:
    """Step -> loss of a run to which nothing happens. Raises NotTrainingError."""
    steps = QUICK_UNDISTURBED_STEPS if quick else UNDISTURBED_STEPS
    with start(subject, WORKERS) as training:
        wait(training, 2 * START_SECONDS, lambda: len(training.steps) >= steps or None)
        return {step.step: step.loss for step in training.steps}


def wait(training: Subject, seconds: float, condition: Callable[[], T | None]) -> T:
    """Replace lost workers until `condition` returns a value. Raises NotTrainingError."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        training.keep()
        training.look()
        found = condition()
        if found is not None:
            return found
        time.sleep(POLL_SECONDS)
    raise NotTrainingError(f"{type(training).__name__}: nothing within {seconds:.0f} s")


def trained(training: Subject, workers: int, least: int = SAVE_EVERY) -> int | None:
    """The newest step, if all workers train and have reached step `least`; else None."""
    newest = training.steps[-1].step if training.steps else 0
    return newest if newest >= least and training.world_size() == workers else None


def outcome(training: Subject, fault: Fault, case: str) -> Values | None:
    """The effect of the fault; None while it is not yet known."""
    found = after_new_generation(training.steps, fault, ENOUGH)
    until = fault.time + WATCH_SECONDS
    if found is None and case in LIVES_ON and time.time() > until:
        found = within_same_generation(training.steps, fault, until, ENOUGH)
    return found


main = command(plan, measure, write_course)

if __name__ == "__main__":
    main()
