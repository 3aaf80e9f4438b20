"""A program that knows nothing but torch.distributed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor(float(dist.get_rank() + 1))
dist.all_reduce(total)
found = {
    "rank": dist.get_rank(),
    "size": dist.get_world_size(),
    "sum": float(total),
    "name": __name__,
}
Path(sys.argv[1], f"rank-{dist.get_rank()}.json").write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
