"""From positions in the stream of samples to tensors on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regroup_trainer.batch import BatchPlanner, MicroBatch, micro_batches
from regroup_trainer.data import Arrays, Dataset
from regroup_trainer.order import digest
from regroup_trainer.step import DeviceBatch, RankBatch
from regroup_trainer.world import World


@dataclass(frozen=True)
class Loader:
    """Reads this rank's samples."""

    data: Dataset
    planner: BatchPlanner
    world: World

    def training(self, first: int) -> RankBatch:
        """The rank's share of the global batch that begins at position `first`."""
        plan = self.planner.plan(first)
        parts = [self._tensors(part, self.data.read_training(part.ids)) for part in plan.micro_batches]
        return RankBatch(parts, len(plan.own_ids), digest(list(plan.own_ids)))

    def held_out(self, count: int) -> list[DeviceBatch]:
        """The rank's share of the first `count` held-out samples, or of all where there are fewer."""
        ids = list(range(min(count, self.data.held_out_samples)))
        parts = micro_batches(ids, self.planner.rank, self.planner.world_size, self.planner.micro_batch_size)
        return [self._tensors(part, self.data.read_held_out(part.ids)) for part in parts]

    def _tensors(self, part: MicroBatch, arrays: Arrays) -> DeviceBatch:
        device = self.world.device
        inputs, targets = (torch.from_numpy(array).to(device) for array in (arrays.inputs, arrays.targets))
        return DeviceBatch(inputs, targets, torch.tensor(part.weights, dtype=torch.float32, device=device))
