"""Stands in for the script of a job that another project publishes: a few steps of DDP on CPUs.

Rank 0 writes what it found to `$REGROUP_DIRECTORY/stand-in.json`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 10


def train() -> list[float]:
    """Learn a line, each rank from inputs of its own; returns the losses."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.linspace(-1, 1, 16)[:, None] + dist.get_rank()
    losses = []
    for _ in range(STEPS):
        loss = (model(inputs) - 2 * inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """One rank."""
    dist.init_process_group("gloo")
    losses = train()
    ranks: list[tuple[int, list[float]]] = [(0, [])] * dist.get_world_size()
    dist.all_gather_object(ranks, (dist.get_rank(), losses))
    if dist.get_rank() == 0:
        folder = Path(os.environ["REGROUP_DIRECTORY"])
        folder.mkdir(parents=True, exist_ok=True)
        found = {"ranks": ranks, "arguments": sys.argv[1:], "variables": dict(os.environ)}
        (folder / "stand-in.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
