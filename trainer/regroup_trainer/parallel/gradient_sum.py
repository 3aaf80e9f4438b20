"""DDP that adds gradients up. Its default, and torch's own hooks, divide by the world size.

There is no `from __future__ import annotations`: DDP inspects the hooks' annotations and refuses
strings.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from regroup_trainer.protocol.config import ParallelismConfig

_EXACT_STEPS = 10
"""Steps before powersgd compresses: DDP rearranges its buckets after the first step, and early
gradients change fast.
"""

Future = torch.futures.Future[Tensor]
Hook = Callable[[Any, GradBucket], Future]
"""State and bucket -> the reduced bucket."""


class SummedDDP(DistributedDataParallel):
    """DistributedDataParallel that reduces to sums, as configured."""

    def __init__(self, module: nn.Module, reduction: ParallelismConfig, **options: Any) -> None:
        super().__init__(module, **options)
        self._buckets: dict[int, Tensor] = {}
        state, reduce = _reduction(reduction, self.process_group)
        self.register_comm_hook(state, _noting(self._buckets, reduce))

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """As the module's. DDP may rearrange its buckets before: nothing else holds the old ones,
        or the gradients would be there twice.
        """
        self._buckets.clear()
        return super().forward(*inputs, **options)  # type: ignore[no-untyped-call]

    def reduced(self) -> list[Tensor] | None:
        """All gradients in few tensors, after a backward pass that reduced them. None where they
        are copies of the parameters' gradients.
        """
        return (
            list(self._buckets.values()) if self.gradient_as_bucket_view and self._buckets else None
        )


def _reduction(config: ParallelismConfig, group: dist.ProcessGroup) -> tuple[Any, Hook]:
    match config.gradient_hook:
        case "none":
            return group, sum_gradients
        case "bf16":
            return group, sum_in_bf16
        case "powersgd":
            rank = config.gradient_rank
            return PowerSGDState(
                group, matrix_approximation_rank=rank, start_powerSGD_iter=_EXACT_STEPS
            ), sum_low_rank


def _noting(buckets: dict[int, Tensor], reduce: Hook) -> Hook:
    """`reduce`, which also keeps the buckets. It must not refer to their DDP: DDP holds the hook
    where Python's collector finds no cycles.
    """

    def noted(state: Any, bucket: GradBucket) -> Future:
        buckets[bucket.index()] = bucket.buffer()
        return reduce(state, bucket)

    return noted


def sum_gradients(group: dist.ProcessGroup, bucket: GradBucket) -> Future:
    """All-reduce the bucket by SUM."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def sum_in_bf16(group: dist.ProcessGroup, bucket: GradBucket) -> Future:
    """All-reduce the bucket by SUM in bfloat16: half the bytes, 8 bits of precision, the range of
    float32.
    """
    compressed = bucket.buffer().to(torch.bfloat16)
    work = dist.all_reduce(compressed, group=group, async_op=True)

    def decompress(future: torch.futures.Future[list[Tensor]]) -> Tensor:
        return bucket.buffer().copy_(future.value()[0])

    return work.get_future().then(decompress)


def sum_low_rank(state: PowerSGDState, bucket: GradBucket) -> Future:
    """PowerSGD (Vogels et al., 2019): sends matrices as products of two thin ones, and adds what is
    lost to the next step.

    Torch's hook computes a mean. Each rank's error is its gradient minus that mean, so the mean
    times the world size, and the errors of all ranks, add up to the sum of the gradients. Errors
    and the last factors are neither saved nor resharded: each generation begins with exact sums
    again.
    """
    size = state.process_group.size()
    return powerSGD_hook(state, bucket).then(lambda future: future.value().mul_(size))
