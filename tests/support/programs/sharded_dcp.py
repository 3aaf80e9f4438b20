"""The shape of a program with FSDP2 and distributed checkpoints: all ranks save after each epoch,
into a folder of that epoch, and every start goes on from the newest whole one.

`sharded_dcp.py FOLDER EPOCHS` writes FOLDER/final.pt.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

FOLDER, EPOCHS = Path(sys.argv[1]), int(sys.argv[2])


def newest() -> int:
    """The last epoch that all ranks have saved; -1 when there is none."""
    return max((int(path.stem) for path in FOLDER.glob("*.whole")), default=-1)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What goes on."""
    parameters, momenta = get_state_dict(model, optimizer)
    return {"model": parameters, "optimizer": momenta}


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    begun = newest() + 1
    if begun:
        state = state_of(model, optimizer)
        load(state, checkpoint_id=FOLDER / str(begun - 1))
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
    for epoch in range(begun, EPOCHS):
        generator = torch.Generator().manual_seed(1000 * epoch + rank)
        inputs = torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()
        save(state_of(model, optimizer), checkpoint_id=FOLDER / str(epoch))
        if rank == 0:
            (FOLDER / f"{epoch}.whole").touch()
        dist.barrier()
        print(f"epoch {epoch} on rank {rank}.")
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        torch.save(whole, FOLDER / "final.new")
        (FOLDER / "final.new").replace(FOLDER / "final.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
