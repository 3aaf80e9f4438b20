"""The shape of a program that was tried on one machine alone: its ranks meet at localhost."""

from __future__ import annotations

import os

import torch.distributed as dist

if __name__ == "__main__":
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29517"
    dist.init_process_group("gloo")
    dist.destroy_process_group()
