"""A rank's life in which every batch of an evaluation takes its time."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from regroup_trainer import evaluate, rank, step
from regroup_trainer.channel import Channel
from regroup_trainer.contract import Assignment


def run(assignment: Assignment, channel: Channel) -> int:
    """Train, slow to evaluate."""
    plain = step.forward

    def forward(*arguments: Any) -> Tensor:
        time.sleep(0.4)
        return plain(*arguments)

    evaluate.forward = forward  # type: ignore[assignment, attr-defined]
    return rank.run(assignment, channel)
