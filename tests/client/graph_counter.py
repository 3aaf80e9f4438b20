"""A rank's life that tells in the end how many graphs were compiled in it."""

from __future__ import annotations

import sys

from torch._dynamo.utils import counters

from regroup_trainer import rank
from regroup_trainer.channel import Channel
from regroup_trainer.contract import Assignment, Finished, RankReport


def run(assignment: Assignment, channel: Channel) -> int:
    """Train; the count comes before the last word, after which the process may be killed."""
    send = channel.send

    def count_and_send(report: RankReport) -> None:
        if isinstance(report, Finished):
            print(f"graphs: {counters['stats']['unique_graphs']}", file=sys.stderr, flush=True)
        send(report)

    channel.send = count_and_send  # type: ignore[method-assign]
    return rank.run(assignment, channel)
