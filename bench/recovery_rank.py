"""A rank of regroup's built-in trainer that can get stuck in its user's code."""

from __future__ import annotations

from bench import stuck
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.rank import rank_process


def run(assignment: Assignment, channel: Channel) -> int:
    """Run a rank; returns its exit status."""
    stuck.listen()
    return rank_process.run(assignment, channel)
