"""The share of its time that a training uses while workers keep failing: Regroup and torchrun under
the same faults.

    make bench NAME=goodput [ARGS=--quick]

The training and the nodes are those of bench/recovery.py, so it needs root. For five minutes,
faults come at random intervals, exponentially distributed with a mean of 60 s. A fault kills a rank
or a worker (agent and rank), or cuts the power of a node. The node is back, empty, after 20 s. The
n-th runs of all subjects have the same trace, from seed n.

`goodput` is useful time by wall time, from the moment when all workers train. Useful is the time of
the steps in the final history. A step counts from the end of the previous step of the same
generation to its own end, but never more than three times the median step. So neither what was done
twice counts, nor detection, nor start, nor waiting. `lost_steps` were done twice. `trains` is 0 for
a run that twice did not come to its faults.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from bench import recovery
from bench.harness import Plan, Values, command
from bench.nodes import send
from bench.outcome import useful_seconds
from bench.recovery_faults import lose_node
from bench.recovery_settings import WORKERS
from bench.recovery_subject import Subject

SUBJECTS = ("regroup", "torchrun-tuned")
UNITS = {"goodput": "ratio", "lost_steps": "steps", "faults": "count", "trains": "ratio"}
KINDS = ("rank", "pod", "node")
REBOOT_SECONDS = 20.0


@dataclass(frozen=True)
class FaultCourse:
    """The length of a run and the rate of its faults."""

    mean_seconds: float
    """Mean time between two faults."""
    seconds: float


COURSES = {"mtbf-60": FaultCourse(60.0, 300.0), "mtbf-4-quick": FaultCourse(4.0, 8.0)}


@dataclass(frozen=True)
class Failure:
    """A fault of the trace."""

    at: float
    """Seconds from the beginning."""
    kind: str
    worker: int


def trace(seed: int, course: FaultCourse) -> Iterator[Failure]:
    """All failures of a run, in order."""
    dice = random.Random(seed)
    at = dice.expovariate(1 / course.mean_seconds)
    while at < course.seconds:
        yield Failure(at, dice.choice(KINDS), dice.randrange(WORKERS))
        at += dice.expovariate(1 / course.mean_seconds)


def settings(case: str, subject: str) -> str:
    """The traces, and what the figures depend on."""
    course, runs = COURSES[case], plan(quick=case.endswith("quick")).runs
    faults = [
        ", ".join(
            f"{failure.kind} {failure.worker} at {failure.at:.0f} s"
            for failure in trace(seed, course)
        )
        for seed in range(1, runs + 1)
    ]
    return f"{recovery.conditions(subject)}; {course.seconds:.0f} s; faults: {'; '.join(faults)}"


def plan(quick: bool) -> Plan:
    """Three traces; a quick run has seconds of one."""
    if quick:
        return Plan("goodput", ("mtbf-4-quick",), ("regroup",), UNITS, 1, settings)
    return Plan("goodput", ("mtbf-60",), SUBJECTS, UNITS, 3, settings)


_runs: dict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))


def measure(case: str, subject: str) -> Values:
    """Run one trace."""
    course = COURSES[case]
    failures = list(trace(next(_runs[subject]), course))
    return recovery.tried(lambda: follow(subject, failures, course))


def follow(subject: str, failures: list[Failure], course: FaultCourse) -> Values:
    """The goodput of a new training under these faults. Raises NotTrainingError."""
    with recovery.start(subject, WORKERS) as training:
        recovery.wait(training, recovery.START_SECONDS, lambda: recovery.trained(training, WORKERS))
        begun = time.time()
        play(training, failures, begun, course.seconds)
        steps = [step for step in training.steps if begun < step.time <= begun + course.seconds]
    useful, lost = useful_seconds(steps)
    return {
        "goodput": useful / course.seconds,
        "lost_steps": float(lost),
        "faults": float(len(failures)),
    }


def play(training: Subject, failures: list[Failure], begun: float, seconds: float) -> None:
    """Inject each fault at its time and restart nodes after REBOOT_SECONDS."""
    ahead = list(failures)
    dark: dict[int, float] = {}
    while (now := time.time() - begun) < seconds:
        if ahead and ahead[0].at <= now:
            failure = ahead.pop(0)
            node = strike(training, failure)
            if failure.kind == "node" and node is not None:
                dark[node] = now + REBOOT_SECONDS
        for node in [node for node, until in dark.items() if until <= now]:
            training.regain(node)
            del dark[node]
        training.keep()
        training.look()
        time.sleep(recovery.POLL_SECONDS)


def strike(training: Subject, failure: Failure) -> int | None:
    """Inject a fault; returns its node, or None if the worker does not run."""
    worker = training.workers.get(failure.worker)
    if worker is None or not worker.runs():
        return None
    if failure.kind == "rank":
        for pid, name in training.nodes.processes(worker.node).items():
            if name.startswith("rank-"):
                send(pid, signal.SIGKILL)
    elif failure.kind == "pod":
        training.nodes.kill(worker.node)
    else:
        lose_node(training, worker.node, 0)
    return worker.node


main = command(plan, measure)

if __name__ == "__main__":
    main()
