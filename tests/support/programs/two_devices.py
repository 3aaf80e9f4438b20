"""A model whose layers are placed by hand: one process owns several devices, under DDP.

`two_devices.py FOLDER DEVICE DEVICE` writes FOLDER/final.pt. DDP gets no `device_ids`, and nobody
calls `.to(rank)`: both would bring all layers to one device.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

FOLDER, FIRST, SECOND = Path(sys.argv[1]), sys.argv[2], sys.argv[3]


class Placed(nn.Module):
    """Two layers, each on a device of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lower = nn.Linear(4, 8).to(FIRST)
        self.upper = nn.Linear(8, 4).to(SECOND)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.lower(inputs.to(FIRST)))
        outputs: Tensor = self.upper(hidden.to(SECOND))
        return outputs


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(7 + dist.get_rank())
    model = DistributedDataParallel(Placed())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    weights = [parameter.detach().cpu() for parameter in model.parameters()]
    both: list[list[Tensor] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(both, weights)
    if dist.get_rank() == 0:
        torch.save({"of ranks": both}, FOLDER / "final.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
