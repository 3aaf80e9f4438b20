"""A rank of regroup's built-in trainer that can get stuck in its user's code."""

from __future__ import annotations

from bench import stuck
from regroup_trainer import rank
from regroup_trainer.channel import Channel
from regroup_trainer.contract import Assignment


def run(assignment: Assignment, channel: Channel) -> int:
    """The life of a rank."""
    stuck.listen()
    return rank.run(assignment, channel)
