"""The shape of a first DDP program: it takes LOCAL_RANK for its rank and a port of its own, and
saves nothing on the way.

`first_ddp.py FOLDER EPOCHS` writes FOLDER/final.pt. `first_ddp.py spawn` starts its ranks itself.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, folder: Path, epochs: int) -> None:
    """Train from the first epoch to the last."""
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * epoch + rank))
        optimizer.zero_grad()
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()
        dist.barrier()
        print(f"epoch {epoch} on rank {rank}.")
    if rank == 0:
        torch.save(model.module.state_dict(), folder / "final.pt")


def main(rank: int, world_size: int) -> None:
    """One rank."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29517"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    train(rank, Path(os.path.expandvars(sys.argv[1])), int(sys.argv[2]))
    dist.destroy_process_group()


if __name__ == "__main__":
    if "spawn" in sys.argv:
        mp.spawn(main, args=(2,), nprocs=2)  # type: ignore[attr-defined,no-untyped-call]
    else:
        main(int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"]))
