"""A first DistributedDataParallel script: a small perceptron learns from synthetic data, a process
per rank.

Nothing in it knows who starts it: torchrun, Regroup on this machine, or Regroup on a cluster.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES, INPUTS, HIDDEN, OUTPUTS = 2000, 10, 10, 5
BATCH_SIZE = 20
"""Of each rank: two ranks take 40 samples a step."""


def main() -> None:
    """Join the other ranks, train, leave."""
    epochs = read_epochs()
    device = join()
    try:
        train(device, epochs)
        dist.barrier()  # who leaves first closes connections that others may still need
    finally:
        dist.destroy_process_group()


def read_epochs() -> int:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    return int(parser.parse_args().epochs)


def join() -> torch.device:
    """Meet the other ranks; whoever started us has put RANK, WORLD_SIZE and where to meet into the
    environment.
    """
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(
        device
    )  # before the first collective: each rank of a machine has a GPU of its own
    dist.init_process_group("nccl")
    return device


def make_samples() -> TensorDataset:
    """Inputs (N, 10) and targets (N, 5) of a linear rule with a little noise; the same on every
    rank.
    """
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, INPUTS, generator=generator)
    rule = torch.randn(INPUTS, OUTPUTS, generator=generator)
    return TensorDataset(
        inputs, inputs @ rule + 0.1 * torch.randn(SAMPLES, OUTPUTS, generator=generator)
    )


def train(device: torch.device, epochs: int) -> None:
    """Each rank trains on its share of every epoch; DDP averages the gradients, so that all stay
    alike.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS)).to(
        device
    )
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    samples = make_samples()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(samples)
    loader = DataLoader(samples, batch_size=BATCH_SIZE, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # without it every epoch has the same order
        loss = torch.zeros((), device=device)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(ddp(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
        dist.all_reduce(loss, dist.ReduceOp.SUM)
        if dist.get_rank() == 0:  # once, not once a rank
            print(f"epoch {epoch}: loss {loss.item() / dist.get_world_size():.4f}", flush=True)
    if dist.get_rank() == 0:
        print(f"trained {epochs} epochs on {dist.get_world_size()} ranks", flush=True)


if __name__ == "__main__":
    main()
