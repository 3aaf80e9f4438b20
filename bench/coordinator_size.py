"""Memory and CPU of a coordinator by the size of its job.

    make bench NAME=coordinator_size [ARGS="--case 64x1"]

A case is agents x ranks of each. The agents are those of `bench.scale`, and send what real ones
send, at their rates: heartbeats as frames, and one report of all their ranks a second, which is the
most that agents send. The model is sharded, so that each rank has a shard of the memory snapshots.
An operator watches.

`rss_mb` is the coordinator's memory in training, `rss_peak_mb` the most from its start until a lost
worker has been recovered from. `training_millicores` is a thousandth of a core: above 1000 the one
thread does not keep up. `recovery_cpu_seconds` is what the loss of a worker takes beyond training.
"""

from __future__ import annotations

import click

from bench.harness import Plan, Values, command
from bench.scale.coordinated import Coordinated
from bench.scale.scale_course import run_course
from bench.scale.settings import QUICK_STEADY_SECONDS, STEADY_SECONDS, ScaleSize

OURS = "regroup"
CASES = ("8x1", "64x1", "256x1", "512x1", "32x8", "128x8", "1024x8")
UNITS = {
    "rss_mb": "MiB",
    "rss_peak_mb": "MiB",
    "training_millicores": "mCPU",
    "recovery_cpu_seconds": "s",
}


def plan(quick: bool) -> Plan:
    """All sizes, or the smallest one."""
    if quick:
        return Plan("coordinator_size", ("8x1-quick",), (OURS,), UNITS, 1)
    settings = f"fsdp; one report of each agent a second, for {STEADY_SECONDS:.0f} s"
    return Plan("coordinator_size", CASES, (OURS,), UNITS, 1, lambda _case, _subject: settings)


def measure(case: str, _subject: str) -> Values:
    """The life of one job: start, training with memory snapshots, a lost worker."""
    return figures(run_course(Coordinated, size_of(case), click.echo))


def size_of(case: str) -> ScaleSize:
    """Read 64x1 or 8x1-quick."""
    size, _, quick = case.partition("-")
    agents, ranks = map(int, size.split("x"))
    return ScaleSize(agents, ranks, QUICK_STEADY_SECONDS if quick else STEADY_SECONDS)


def figures(found: Values) -> Values:
    """Those of this table, as far as they have come."""
    share = found.get("steady_cpu_share")
    millicores = None if share is None else 10 * share
    return {
        name: millicores if name == "training_millicores" else found.get(name) for name in UNITS
    }


main = command(plan, measure)

if __name__ == "__main__":
    main()
