"""The shape of a first DDP program: it takes LOCAL_RANK for its rank, and a port of its own.

`first_ddp.py spawn` starts its ranks itself.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main(rank: int, world_size: int) -> None:
    """One rank."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29517"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world_size
    print("sum", int(total.item()), "on rank", rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "spawn" in sys.argv:
        mp.spawn(main, args=(2,), nprocs=2)  # type: ignore[attr-defined,no-untyped-call]
    else:
        main(int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"]))
