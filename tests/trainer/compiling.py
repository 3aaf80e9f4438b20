"""Ranks that tell what was compiled."""

from __future__ import annotations

import sys
from typing import Any

from regroup_trainer.contract import Assignment
from tests.support.ranks import RecordingChannel, train


def train_without_recompiling(assignment: Assignment, options: dict[str, Any], channel: RecordingChannel) -> int:
    """Train; a function that has to be compiled a second time is an error."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.config.error_on_recompile = True
    code = train(assignment, options, channel)
    print(f"graphs: {counters['stats']['unique_graphs']}", file=sys.stderr)
    return code
