"""A rank whose evaluation is slow."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.rank import rank_process
from regroup_trainer.step import evaluate
from regroup_trainer.step import forward as forward_pass


def run(assignment: Assignment, channel: Channel) -> int:
    """Train; each batch of an evaluation takes 0.4 s longer."""
    plain = forward_pass.forward

    def forward(*arguments: Any) -> Tensor:
        time.sleep(0.4)
        return plain(*arguments)

    evaluate.forward = forward  # type: ignore[assignment, attr-defined]
    return rank_process.run(assignment, channel)
