"""The commit vector: one float64 all-reduce per step that makes it a step of all ranks, or of none.

It is sent when a rank's gradient reductions have finished. The member count is its first and last element, so that a
torn write shows; integers are exact in float64 below 2^53.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from regroup_trainer.contract import Decision
from regroup_trainer.errors import CommitError


@dataclass(frozen=True)
class Contribution:
    """What one rank adds to the sum."""

    tokens: int
    """That it trained on, repeats left out."""
    loss_sum: float
    """Over these tokens, in nats."""
    squared_norm: float
    """Of its gradients, divided by how many ranks hold the same ones."""
    digest: int
    """`order.digest` of its samples."""
    decision: Decision
    """Rank 0's; CONTINUE elsewhere."""

    def vector(self) -> list[float]:
        """The elements to be summed over the ranks."""
        # Spelt out: dataclasses.astuple takes ten times as long.
        numbers = (self.tokens, self.loss_sum, self.squared_norm, self.digest, self.decision)
        return [1.0, *map(float, numbers), 1.0]


LENGTH = 7
"""Elements of the vector."""


@dataclass(frozen=True)
class Commit:
    """What all ranks know after the sum."""

    tokens: int
    loss: float | None
    """Mean loss per token in nats; None when it is not finite."""
    gradient_norm: float | None
    """Of the summed, pre-scaled gradients; None when it is not finite."""
    digest: int
    decision: Decision


def read(vector: list[float], world_size: int, squared_norm: float | None = None) -> Commit:
    """Interpret the summed vector. Raises CommitError when it is torn or ranks are missing in it.

    `squared_norm` is that of the reduced gradients where each rank has all of them; else the ranks' parts are summed.
    """
    first, tokens, loss_sum, summed_norm, digest, decision, last = vector
    squared_norm = summed_norm if squared_norm is None else squared_norm
    if first != world_size or last != world_size:
        raise CommitError(f"the commit vector counts {first} and {last} ranks instead of {world_size}")
    if tokens < 1:
        raise CommitError("the commit vector counts no token")
    loss, norm = loss_sum / tokens, math.sqrt(squared_norm) if squared_norm >= 0 else math.nan
    return Commit(
        tokens=int(tokens),
        loss=loss if math.isfinite(loss) else None,
        gradient_norm=norm if math.isfinite(norm) else None,
        digest=int(digest),
        decision=Decision(int(decision)),
    )


def gradient_factor(commit: Commit, expected_tokens: int, clip: float) -> float:
    """What to multiply gradients with that were pre-scaled by 1 / expected_tokens: token correction, then clipping.

    `clip` 0 does not clip. Raises ValueError when the norm is not finite: then there must be no update.
    """
    if commit.gradient_norm is None:
        raise ValueError("the gradients are not finite")
    correction = expected_tokens / commit.tokens
    norm = commit.gradient_norm * correction
    return correction * (clip / norm if clip and norm > clip else 1.0)
