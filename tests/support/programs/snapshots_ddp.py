"""The shape of a DDP program with snapshots: rank 0 saves after each epoch, and every start goes on
from there.

`snapshots_ddp.py FOLDER EPOCHS [abort]` writes FOLDER/final.pt. With `abort`, rank 1 aborts after
its last line.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLDER, EPOCHS = Path(sys.argv[1]), int(sys.argv[2])
SNAPSHOT = FOLDER / "snapshot.pt"


def batch(epoch: int, rank: int) -> torch.Tensor:
    """This rank's samples of an epoch."""
    generator = torch.Generator().manual_seed(1000 * epoch + rank)
    return torch.randn(8, 4, generator=generator)


def save(path: Path, **state: object) -> None:
    """Write a file that is whole or not there."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    begun = 0
    if SNAPSHOT.exists():
        state = torch.load(SNAPSHOT)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begun = state["epoch"] + 1
    for epoch in range(begun, EPOCHS):
        inputs = batch(epoch, rank)
        optimizer.zero_grad()
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()
        if rank == 0:
            save(
                SNAPSHOT,
                model=model.module.state_dict(),
                optimizer=optimizer.state_dict(),
                epoch=epoch,
            )
        dist.barrier()
        print(f"epoch {epoch} on rank {rank}.")
    if rank == 0:
        save(FOLDER / "final.pt", **model.module.state_dict())
    dist.barrier()
    dist.destroy_process_group()
    if rank == 1 and "abort" in sys.argv:
        atexit.register(os.abort)


if __name__ == "__main__":
    main()
