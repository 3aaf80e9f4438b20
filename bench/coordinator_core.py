"""What a message costs the coordinator's core, in microseconds, by the number of workers and ranks.

    make bench NAME=coordinator_core [ARGS=--quick]

The core runs alone, without network and JSON. Each wave of the life of a job is measured: what all
agents or ranks send upon the same occasion. `progress of an agent` is what a steady job sends all
the time: one message with all ranks of an agent. The reports in other waves are messages of one
rank each. The time is that of the processor, so that other processes matter less. Three waves are
one event that concerns all workers: the loss of a worker, the status that somebody asks for, and
the comparison of all paces, once a second (of more than 8,192 ranks less often). `parked` contains
the begin of the next generation.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from bench.harness import Goal, Plan, Values, command
from tests.support.large_job import Event, LargeJob

SIZES = ("64x1", "64x8", "512x1", "512x8", "4096x1", "4096x8")
"""Workers and the ranks of each."""
WAVES = (
    "hello", "restored", "progress", "progress of an agent", "paces", "heartbeat", "tick", "status",
    "snapshots", "closed", "hello again", "loss", "parked", "replacement", "hello to a successor",
    "joining", "leaving", "finished",
)  # fmt: skip
CHANGES_NOTHING = ("progress", "progress of an agent", "heartbeat", "snapshots")
MOST_US = 30.0
"""Of 4,096 workers, for each of these: they change no decision. A message of an agent has a report
of each of its ranks.
"""


def plan(quick: bool) -> Plan:
    """Three runs of each size; a quick one measures two small ones once."""
    sizes = SIZES[:2] if quick else SIZES
    units = {metric_of(wave): "us" for wave in WAVES}
    return Plan("coordinator_core", sizes, ("regroup",), units, 1 if quick else 3, goals=goals)


def goals(case: str, _subject: str) -> Mapping[str, Goal]:
    """What is asked of the messages that all agents send while a job trains."""
    workers, _, ranks = case.partition("x")
    if workers != "4096":
        return {}
    reports = {"progress of an agent": int(ranks)}
    return {metric_of(wave): Goal(MOST_US * reports.get(wave, 1)) for wave in CHANGES_NOTHING}


def measure(case: str, _subject: str) -> Values:
    """The mean of each wave."""
    workers, ranks = map(int, case.split("x"))
    waves = LargeJob(workers, ranks).waves()
    return {metric_of(wave): mean_us(events) for wave, events in waves}


def metric_of(wave: str) -> str:
    """The name of its figure."""
    return f"{wave.replace(' ', '_')}_us"


def mean_us(events: Sequence[Event]) -> float:
    """The time of the processor for one of these events, in microseconds."""
    begun = time.process_time()
    for event in events:
        event()
    return (time.process_time() - begun) / len(events) * 1e6


main = command(plan, measure)

if __name__ == "__main__":
    main()
