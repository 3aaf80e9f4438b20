"""Means over a user's own dataset. Each rank measures a share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from regroup_trainer.data.batch import share
from regroup_trainer.errors import DataError
from regroup_trainer.parallel.parallelize import reshard
from regroup_trainer.parallel.process_group import GenerationGroup


class Samples(Protocol):
    """A map-style dataset, as torch.utils.data has it."""

    def __len__(self) -> int:
        """The number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """One sample."""


@torch.no_grad()
def measure_all(
    model: nn.Module,
    dataset: Samples,
    measure: Callable[[Any], Mapping[str, Tensor]],
    group: GenerationGroup,
    loader: dict[str, Any],
    alive: Callable[[], None],
) -> dict[str, float]:
    """Means over all samples, the same on all ranks. Raises DataError.

    `loader` are DataLoader's options, with batch_size. `alive` is called at each batch.
    """
    if len(dataset) == 0:
        raise DataError(
            "session.evaluate: the dataset has no samples: give it some, or do not evaluate"
        )
    own, batch_size = share(len(dataset), group.rank, group.size), int(loader.pop("batch_size"))
    largest = math.ceil(len(dataset) / group.size)
    passes = math.ceil(largest / batch_size)
    cuts = [share(len(own), number, passes) for number in range(passes)]
    # A rank without a sample of its own measures one at weight 0, because sharded models
    # communicate in every pass.
    ids = [list(own[cut.start : cut.stop]) or [0] for cut in cuts]
    sums: dict[str, float] = {}
    was_training = model.training
    model.eval()
    batches = DataLoader(cast(Dataset[Any], dataset), batch_sampler=ids, **loader)
    for cut, batch in zip(cuts, batches, strict=True):
        alive()
        for name, mean in measure(to_device(batch, group.device)).items():
            sums[name] = sums.get(name, 0.0) + (float(mean) * len(cut) if cut else 0.0)
    model.train(was_training)
    reshard(model)
    names = sorted(sums)
    vector = torch.tensor(
        [*(sums[name] for name in names), len(own)], dtype=torch.float64, device=group.device
    )
    if group.size > 1:
        dist.all_reduce(vector)
    *totals, count = vector.tolist()
    return {name: total / count for name, total in zip(names, totals, strict=True)}


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch as DataLoader collates it (nested lists, tuples, mappings), with its tensors on a
    device.
    """
    if device.type == "cpu":
        return batch
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
