"""Elastic training in epochs, as torchrun's documentation recommends it: load at the start, save
after each epoch.

When a rank dies, torchrun starts all of them again, and the epoch that was under way is lost.
`--zero` shards the optimizer's state over the ranks.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from digits import Network, load_digits
from memory import megabytes_of_state
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FOLDER = Path(os.environ.get("REGROUP_DIRECTORY", "run"))
"""Shared by all ranks, and still there when they are not."""


def main() -> None:
    """Join, train the epochs that are left, leave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument(
        "--zero", action="store_true", help="shard the optimizer state over the ranks"
    )
    given = parser.parse_args()
    use_cuda = torch.cuda.is_available()
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else torch.device("cpu")
    )
    if use_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if use_cuda else "gloo")
    try:
        Training(device, given.zero).run(given.epochs)
        dist.barrier()
    finally:
        dist.destroy_process_group()


class Training:
    """Model, optimizer, data, and how far they are."""

    def __init__(self, device: torch.device, use_zero: bool) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = DistributedDataParallel(Network().to(device))
        self.optimizer = make_optimizer(self.model, use_zero)
        images, labels, self.origin = load_digits()
        dataset = TensorDataset(images, labels)
        self.sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset)
        self.loader = DataLoader(dataset, batch_size=64, sampler=self.sampler)
        self.file = FOLDER / "state.pt"
        self.epoch = self.load()

    def run(self, epochs: int) -> None:
        """Train the remaining epochs; rank 0 prints."""
        ranks = dist.get_world_size()
        self.print_once(f"{ranks} ranks, digits {self.origin}: epoch {self.epoch} is next")
        while self.epoch < epochs:
            loss = self.train_epoch()
            self.epoch += 1
            self.save()
            self.print_once(f"epoch {self.epoch - 1} on {ranks} ranks: loss {loss:.4f}")
        self.print_once(
            f"trained {epochs} epochs; state per rank: "
            f"{megabytes_of_state(self.model, self.optimizer):.1f} MB"
        )

    def train_epoch(self) -> float:
        """One pass over this rank's share; the mean loss of the last batches of all ranks."""
        self.sampler.set_epoch(self.epoch)
        loss = torch.zeros((), device=self.device)
        for images, labels in self.loader:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(images.to(self.device)), labels.to(self.device))
            loss.backward()
            self.optimizer.step()
        dist.all_reduce(loss)
        return loss.item() / dist.get_world_size()

    def load(self) -> int:
        """The epoch to begin with."""
        if not self.file.exists():
            return 0
        state = torch.load(self.file, map_location=self.device, weights_only=True)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["epoch"])

    def save(self) -> None:
        """Replace the state in one move, so that a kill leaves the old or the new one; nobody goes
        on before.
        """
        if isinstance(self.optimizer, ZeroRedundancyOptimizer):
            self.optimizer.consolidate_state_dict(to=0)  # all send their parts to rank 0
        if dist.get_rank() == 0:
            FOLDER.mkdir(parents=True, exist_ok=True)
            unfinished = self.file.with_suffix(".unfinished")
            model, optimizer = self.model.module.state_dict(), self.optimizer.state_dict()
            torch.save({"model": model, "optimizer": optimizer, "epoch": self.epoch}, unfinished)
            unfinished.rename(self.file)
        dist.barrier()

    def print_once(self, text: str) -> None:
        """Print on rank 0 only."""
        if dist.get_rank() == 0:
            print(text, flush=True)


def make_optimizer(model: DistributedDataParallel, use_zero: bool) -> Optimizer:
    """AdamW, whole on every rank or in parts."""
    if use_zero:
        return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=AdamW, lr=1e-3)
    return AdamW(model.parameters(), lr=1e-3)


if __name__ == "__main__":
    main()
