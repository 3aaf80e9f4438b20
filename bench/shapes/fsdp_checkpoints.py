"""The shape of a script for a model in shards: FSDP2, and a distributed checkpoint each epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from points import BATCH_SIZE, arguments, make_model, make_samples
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

NEWEST = "newest"
"""A link to the newest whole checkpoint."""


class Training:
    """A sharded model, its optimizer, and the epochs that are done."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        for layer in model.children():
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        self.model = fully_shard(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.folder = folder
        self.epoch = 0

    def load(self) -> None:
        """Take over the newest checkpoint, if there is one."""
        newest = self.folder / NEWEST
        if not newest.exists():
            return
        state = self.state()
        dcp.load(state, checkpoint_id=newest)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.epoch = state["epoch"]

    def save(self) -> None:
        """Write a checkpoint, and link to it when it is whole."""
        name = f"epoch-{self.epoch}"
        dcp.save(self.state(), checkpoint_id=self.folder / name)
        if dist.get_rank() == 0:
            link = self.folder / "link"
            link.unlink(missing_ok=True)
            link.symlink_to(name)
            link.rename(self.folder / NEWEST)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "epoch": self.epoch}


def train(training: Training, epochs: int) -> None:
    """Train to the end of the last epoch."""
    samples = make_samples()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(samples)
    loader = DataLoader(samples, batch_size=BATCH_SIZE, sampler=sampler)
    while training.epoch < epochs:
        sampler.set_epoch(training.epoch)
        for inputs, targets in loader:
            training.optimizer.zero_grad()
            loss = F.mse_loss(training.model(inputs), targets)
            loss.backward()
            training.optimizer.step()
        training.epoch += 1
        training.save()
        if dist.get_rank() == 0:
            print(f"epoch {training.epoch}: loss {loss.item():.4f}")


def main() -> None:
    """One rank."""
    dist.init_process_group("gloo")
    folder, epochs = arguments()
    training = Training(make_model(), folder)
    training.load()
    if dist.get_rank() == 0:
        print(f"begins at epoch {training.epoch}")
    train(training, epochs)
    whole = get_model_state_dict(
        training.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if dist.get_rank() == 0:
        torch.save(whole, folder / "final.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
