"""A rank's life that tells in the end how many graphs were compiled in it."""

from __future__ import annotations

import sys

from torch._dynamo.utils import counters

from regroup_trainer import rank
from regroup_trainer.channel import Channel
from regroup_trainer.contract import Assignment


def run(assignment: Assignment, channel: Channel) -> int:
    """Train, then count."""
    code = rank.run(assignment, channel)
    print(f"graphs: {counters['stats']['unique_graphs']}", file=sys.stderr, flush=True)
    return code
