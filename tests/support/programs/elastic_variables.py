"""The shape of a program that reads torchelastic's variables: it keys a store by the number of
restarts, and meets the other ranks there before each epoch.

`elastic_variables.py FOLDER EPOCHS` writes FOLDER/final.pt.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

FOLDER, EPOCHS = Path(os.path.expandvars(sys.argv[1])), int(sys.argv[2])
SAVED = FOLDER / "saved.pt"


def main() -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    assert restarts <= int(os.environ["TORCHELASTIC_MAX_RESTARTS"])
    hosts_store = rank == 0 and os.environ["TORCHELASTIC_USE_AGENT_STORE"] != "True"
    store = PrefixStore(
        f"{os.environ['TORCHELASTIC_RUN_ID']}/{restarts}",
        TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            world_size,
            is_master=hosts_store,
            timeout=timedelta(seconds=60),
        ),
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    print(f"restart {restarts} on rank {rank}.")
    torch.manual_seed(7)
    total, begun = torch.rand(5), 0
    if SAVED.exists():
        state = torch.load(SAVED)
        total, begun = state["total"], state["epoch"] + 1
    for epoch in range(begun, EPOCHS):
        assert store.add(f"epoch-{epoch}", 1) <= world_size, "a rank of another start has been here"
        share = torch.randn(5, generator=torch.Generator().manual_seed(1000 * epoch + rank))
        dist.all_reduce(share)
        total = total + share
        if rank == 0:
            torch.save({"total": total, "epoch": epoch}, SAVED.with_suffix(".new"))
            SAVED.with_suffix(".new").replace(SAVED)
        dist.barrier()
        print(f"epoch {epoch} on rank {rank}.")
    if rank == 0:
        torch.save({"total": total}, FOLDER / "final.new")
        (FOLDER / "final.new").replace(FOLDER / "final.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
