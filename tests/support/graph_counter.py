"""A rank that prints at the end how many graphs were compiled."""

from __future__ import annotations

import sys

from torch._dynamo.utils import counters

from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.protocol.rank_messages import Finished, RankReport
from regroup_trainer.rank import rank_process


def run(assignment: Assignment, channel: Channel) -> int:
    """Train. The count is printed before the last report, after which the process may be killed."""
    send = channel.send

    def count_and_send(report: RankReport) -> None:
        if isinstance(report, Finished):
            print(f"graphs: {counters['stats']['unique_graphs']}", file=sys.stderr, flush=True)
        send(report)

    channel.send = count_and_send  # type: ignore[method-assign]
    return rank_process.run(assignment, channel)
