"""The shape of most torchrun scripts: DDP, and a snapshot after each epoch."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from points import BATCH_SIZE, arguments, make_model, make_samples
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


class Trainer:
    """Trains a model, from its newest snapshot on."""

    def __init__(self, model: nn.Module, snapshot: Path) -> None:
        self.rank = int(os.environ["RANK"])
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.snapshot = snapshot
        self.epoch = 0
        if snapshot.exists():
            self.load()

    def load(self) -> None:
        """Take over the snapshot."""
        state = torch.load(self.snapshot, weights_only=True)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"]

    def save(self) -> None:
        """Replace the snapshot."""
        state = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
        }
        torch.save(state, self.snapshot.with_suffix(".unfinished"))
        self.snapshot.with_suffix(".unfinished").rename(self.snapshot)

    def train(self, epochs: int) -> None:
        """Train to the end of the last epoch."""
        samples = make_samples()
        sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(samples)
        loader = DataLoader(samples, batch_size=BATCH_SIZE, sampler=sampler)
        if self.rank == 0:
            print(f"begins at epoch {self.epoch}")
        while self.epoch < epochs:
            sampler.set_epoch(self.epoch)
            for inputs, targets in loader:
                self.optimizer.zero_grad()
                loss = F.mse_loss(self.model(inputs), targets)
                loss.backward()
                self.optimizer.step()
            self.epoch += 1
            if self.rank == 0:
                self.save()
                print(f"epoch {self.epoch}: loss {loss.item():.4f}")


def main() -> None:
    """One rank."""
    dist.init_process_group("gloo")
    folder, epochs = arguments()
    trainer = Trainer(make_model(), folder / "snapshot.pt")
    trainer.train(epochs)
    if trainer.rank == 0:
        torch.save(trainer.model.module.state_dict(), folder / "final.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
