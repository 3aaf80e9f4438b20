"""The commit vector: one float64 all-reduce per step that makes it a step of all ranks, or of none.

It is sent when a rank's gradient reductions have finished. The member count is its first and last element, so that a
torn write shows; integers are exact in float64 below 2^53.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regroup_trainer.contract import Decision
from regroup_trainer.errors import CommitError


@dataclass(frozen=True)
class Contribution:
    """What one rank adds to the sum."""

    tokens: int
    """That it trained on, repeats left out."""
    loss_sum: float | Tensor
    """Over these tokens, in nats; a tensor where the host need not know it."""
    squared_norm: float | Tensor
    """Of its gradients, divided by how many ranks hold the same ones."""
    digest: int
    """`order.digest` of its samples."""
    decision: Decision
    """Rank 0's; CONTINUE elsewhere."""

    def vector(self, device: torch.device) -> Tensor:
        """The elements to be summed over the ranks: [LENGTH], float64. The host does not wait for a GPU."""
        # Spelt out: dataclasses.astuple takes ten times as long.
        numbers = (1.0, self.tokens, self.loss_sum, self.squared_norm, self.digest, self.decision, 1.0)
        if device.type == "cpu":
            return torch.tensor([float(number) for number in numbers], dtype=torch.float64)
        known = [0.0 if isinstance(number, Tensor) else float(number) for number in numbers]
        vector = torch.tensor(known, dtype=torch.float64).pin_memory().to(device, non_blocking=True)
        for place, number in enumerate(numbers):
            if isinstance(number, Tensor):
                vector[place] = number
        return vector


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

    @property
    def finite(self) -> bool:
        """Whether the parameters may be updated."""
        return self.loss is not None and self.gradient_norm is not None


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


def guard(vector: Tensor, world_size: int, expected_tokens: int, clip: float) -> tuple[Tensor, Tensor]:
    """What `read` and `gradient_factor` say, computed where the summed vector is, so that an update need not wait.

    Returns (held back, divisor), float32 scalars as the fused optimizers of PyTorch take them (`found_inf`,
    `grad_scale`): 1 where the vector is torn, lacks ranks or is not finite, and what to divide the gradients by.
    """
    first, tokens, loss_sum, squared_norm, _, _, last = vector.unbind()
    correction = expected_tokens / tokens
    factor = correction
    if clip:
        factor = correction * (clip / (squared_norm.sqrt() * correction)).clamp(max=1.0)
    whole = (first == world_size) & (last == world_size) & (tokens >= 1)
    finite = loss_sum.isfinite() & squared_norm.isfinite() & (squared_norm >= 0)
    return (~(whole & finite)).float(), (1.0 / factor).float()
