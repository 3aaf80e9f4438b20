"""The commit vector: one all-reduce of float64 numbers that makes a step a step of all ranks, or of
none.

The number of ranks is its first and its last element, so that a torn vector is recognised. Integers
below 2^53 are exact in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regroup_trainer.errors import CommitError
from regroup_trainer.protocol.generation import Decision


@dataclass(frozen=True)
class Contribution:
    """What one rank adds to the commit vector."""

    tokens: int
    """Tokens that it trained on, without repeats."""
    loss_sum: float | Tensor
    """Sum of the loss over these tokens, in nats; a tensor where the host need not know it."""
    squared_norm: float | Tensor
    """The squared norm of its gradients, divided by the number of ranks that hold the same ones."""
    digest: int
    """`order.digest` of its samples."""
    decision: Decision
    """The decision of rank 0; CONTINUE on other ranks."""
    ready: bool = True
    """Whether it has memory ready for a snapshot; a rank that has not postpones one."""

    def vector(self, device: torch.device) -> Tensor:
        """The elements to be summed over the ranks: [LENGTH], float64. The host does not wait for a
        GPU.
        """
        # Written out, because dataclasses.astuple takes ten times as long.
        numbers = (
            1.0,
            self.tokens,
            self.loss_sum,
            self.squared_norm,
            self.digest,
            self.decision + (0 if self.ready else _NOT_READY),
            1.0,
        )
        if device.type == "cpu":
            return torch.tensor([float(number) for number in numbers], dtype=torch.float64)
        known = [0.0 if isinstance(number, Tensor) else float(number) for number in numbers]
        vector = torch.tensor(known, dtype=torch.float64).pin_memory().to(device, non_blocking=True)
        for place, number in enumerate(numbers):
            if isinstance(number, Tensor):
                vector[place] = number
        return vector


LENGTH = 7
"""Number of elements of the vector."""
_NOT_READY = 8
"""Added to the decisions by each rank that is not ready; greater than any decision."""


@dataclass(frozen=True)
class Commit:
    """What all ranks know of a step after the all-reduce."""

    tokens: int
    loss: float | None
    """Mean loss per token in nats; None when it is not finite."""
    gradient_norm: float | None
    """Norm of the summed, pre-scaled gradients; None when it is not finite."""
    digest: int
    decision: Decision

    @property
    def finite(self) -> bool:
        """Whether the parameters may be updated."""
        return self.loss is not None and self.gradient_norm is not None


def read(vector: list[float], world_size: int, squared_norm: float | None = None) -> Commit:
    """Interpret the summed vector. Raises CommitError when it is torn or lacks ranks.

    `squared_norm` is given where each rank has all reduced gradients; otherwise the sum contains
    it.
    """
    first, tokens, loss_sum, summed_norm, digest, decisions, last = vector
    squared_norm = summed_norm if squared_norm is None else squared_norm
    if first != world_size or last != world_size:
        raise CommitError(
            f"the commit vector counts {first} and {last} ranks instead of {world_size}"
        )
    if tokens < 1:
        raise CommitError("the commit vector counts no token")
    loss, norm = loss_sum / tokens, math.sqrt(squared_norm) if squared_norm >= 0 else math.nan
    return Commit(
        tokens=int(tokens),
        loss=loss if math.isfinite(loss) else None,
        gradient_norm=norm if math.isfinite(norm) else None,
        digest=int(digest),
        decision=_agreed(int(decisions)),
    )


def _agreed(decisions: int) -> Decision:
    """The decision in a sum of one decision and any number of _NOT_READY."""
    not_ready, decision = divmod(decisions, _NOT_READY)
    if not_ready and decision == Decision.SNAPSHOT:
        return Decision.CONTINUE
    return Decision(decision)


def gradient_factor(commit: Commit, expected_tokens: int, clip: float) -> float:
    """The factor for gradients that were pre-scaled by 1 / expected_tokens: it corrects for the
    number of tokens, then clips.

    `clip` 0 does not clip. Raises ValueError when the norm is not finite: there must be no update.
    """
    if commit.gradient_norm is None:
        raise ValueError("the gradients are not finite")
    correction = expected_tokens / commit.tokens
    norm = commit.gradient_norm * correction
    return correction * (clip / norm if clip and norm > clip else 1.0)


def guard(
    vector: Tensor, world_size: int, expected_tokens: int, clip: float
) -> tuple[Tensor, Tensor]:
    """The same as `read` and `gradient_factor`, computed on the device of the vector, so that an
    update need not wait for the host.

    Returns (held back, divisor): float32 scalars for the arguments `found_inf` and `grad_scale` of
    PyTorch's fused optimizers. `held back` is 1 where the vector is torn, lacks ranks or is not
    finite.
    """
    first, tokens, loss_sum, squared_norm, _, _, last = vector.unbind()
    correction = expected_tokens / tokens
    factor = correction
    if clip:
        factor = correction * (clip / (squared_norm.sqrt() * correction)).clamp(max=1.0)
    whole = (first == world_size) & (last == world_size) & (tokens >= 1)
    finite = loss_sum.isfinite() & squared_norm.isfinite() & (squared_norm >= 0)
    return (~(whole & finite)).float(), (1.0 / factor).float()
