"""The shape of a program that starts its ranks itself, by Python's own multiprocessing.

`own_ranks.py METHOD` starts them by fork, spawn or forkserver.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

import torch.distributed as dist


def train(rank: int) -> None:
    """One rank."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29519"
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process  # type: ignore[attr-defined]
    ranks = [process(target=train, args=(rank,)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
