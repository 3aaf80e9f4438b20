"""The shape of a program that starts processes which are no ranks: one computes, one makes a group
of its own, and three make one together.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile

import torch.distributed as dist


def compute() -> None:
    """Needs no other process."""
    assert os.environ["RANK"]


def meet(folder: str, rank: int, size: int) -> None:
    """Make a group of helpers."""
    dist.init_process_group("gloo", f"file://{folder}/{size}", rank=rank, world_size=size)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Start the helpers, and say how they have ended."""
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        helpers = [
            spawn.Process(target=compute),
            spawn.Process(target=meet, args=(folder, 0, 1)),
            *(fork.Process(target=meet, args=(folder, rank, 3)) for rank in range(3)),
        ]
        for helper in helpers:
            helper.start()
        for helper in helpers:
            helper.join()
    codes = {helper.exitcode for helper in helpers}
    print("the helpers have ended with", *codes)
    sys.exit(max(code or 0 for code in codes))


if __name__ == "__main__":
    main()
