"""What a coordinator of up to 4,096 agents with eight ranks each does, and how fast.

    make bench NAME=scale [ARGS="--case agents-128 --subject regroup"]

Simulated agents send what real ones send, and as often. The model is sharded, so that each agent
holds the shards of its own ranks and of its neighbour's. They are on the machine of the
coordinator, and `simulation_cpu_share` says what they take of it. A row has the events of one job:

- `form`: all agents connect at the same time, until the last one begins the first generation;
- steady training: CPU and memory of the coordinator, how long an answer of its status takes, and
  how long heartbeats take, from before they are sent until their answer is read;
- `recovery`: from the report that a worker is lost until the last of the others begins the next
  generation, what the coordinator sends meanwhile, and its CPU until their reports have come;
- `resync`: from the kill of the coordinator until all agents are back at its successor, which goes
  on with the same generation.

What does not come within its time is a result: `formed`, `recovered` and `resynced` are 0 in a run
in which it did not. `megabytes_sent` is what agents received of the recovery.

The lighthouse is fetched from a package index; without a wheel of it for this Python, the run says
so, and there is no row of torchft.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from bench.harness import Goal, Plan, Values, command
from bench.recovery_settings import LOST_SECONDS
from bench.scale.coordinated import Coordinated
from bench.scale.lighthouse import Lighthouse
from bench.scale.lighthouse_package import PACKAGE
from bench.scale.meeting_point import MeetingPoint
from bench.scale.scale_course import ScaleSubject, run_course
from bench.scale.settings import (
    FORM_SECONDS,
    GOALS,
    RECOVERY_SECONDS,
    RESYNC_SECONDS,
    UNITS,
    ScaleSize,
)

CASES = ("agents-16", "agents-128", "agents-1024", "agents-4096")
SUBJECTS: Mapping[str, type[ScaleSubject]] = {
    "regroup": Coordinated,
    "torchft": Lighthouse,
    "torchrun": MeetingPoint,
}

DETAILS = {
    "regroup": "heartbeats twice a second; each second progress of rank 0 and 128 other agents",
    "torchft": (
        f"{PACKAGE}; heartbeats each 0.1 s, lost after {LOST_SECONDS:.0f} s; a quorum each 0.5 s"
    ),
    "torchrun": "settings as by default: a smaller round waits 30 s for more agents",
}


def plan(quick: bool) -> Plan:
    """All sizes; a quick run takes the smallest one."""
    cases = (f"{CASES[0]}-quick",) if quick else CASES
    return Plan("scale", cases, tuple(SUBJECTS), UNITS, 1 if quick else 3, settings, goals)


def settings(_case: str, subject: str) -> str:
    """What its figures depend on."""
    limits = (
        f"within {FORM_SECONDS:.0f} s to form, {RECOVERY_SECONDS:.0f} s to recover, "
        f"{RESYNC_SECONDS:.0f} s to resync"
    )
    return f"{limits}; {DETAILS[subject]}"


def goals(case: str, subject: str) -> Mapping[str, Goal]:
    """Ours, for the two large sizes."""
    return GOALS.get(case, {}) if subject == "regroup" else {}


def measure(case: str, subject: str) -> Values:
    """One run of a row; no figures of a subject that cannot run here."""
    if not SUBJECTS[subject].can_run(click.echo):
        return {}
    return run_course(SUBJECTS[subject], ScaleSize.of(case), click.echo)


main = command(plan, measure)

if __name__ == "__main__":
    main()
