"""A step on its way to its commit: each rank's contribution, summed over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.step.commit import Contribution


@dataclass(frozen=True)
class Share:
    """What a rank brings to the commit of a step, besides the gradients in its model."""

    tokens: int
    """Tokens that it trained on, without repeats."""
    loss_sum: float | Tensor
    """Sum of the loss over these tokens, in nats; a tensor where the host need not know it."""
    digest: int
    """`order.digest` of its samples."""
    load: float = 1.0
    """Its work as a multiple of an equal share, at least 1. Its compute time is divided by it, so
    that a rank with more samples does not look slow.
    """


class Proposal:
    """The all-reduce of the contributions of all ranks; it begins when the object is made."""

    def __init__(self, contribution: Contribution, group: GenerationGroup) -> None:
        self.sum = contribution.vector(group.device)
        """[LENGTH]; the sum over all ranks once the all-reduce has ended."""
        self._work = dist.all_reduce(self.sum, async_op=True) if group.size > 1 else None

    def receive(self) -> Callable[[], list[float]]:
        """Make the device wait for the sum; returns a function that waits for it on the host.

        What is queued on the device after this call finds the sum there.
        """
        if self._work is not None:
            self._work.wait()
        if self.sum.device.type == "cpu":
            return self.sum.tolist
        copy = torch.empty_like(self.sum, device="cpu", pin_memory=True)
        copy.copy_(self.sum, non_blocking=True)
        arrived = torch.cuda.current_stream().record_event()

        def read() -> list[float]:
            arrived.synchronize()
            numbers: list[float] = copy.tolist()
            return numbers

        return read
