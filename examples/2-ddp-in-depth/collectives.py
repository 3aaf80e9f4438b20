"""Broadcast, reduce and all-reduce as trees, out of sends and receives, beside the obvious loop.

    python collectives.py                    # every message takes 5 ms, as on a slow network
    python collectives.py --latency-ms 0     # only what this machine itself needs

A tree halves the ranks that are left in every round, so n ranks need ceil(log2 n) rounds instead of
n - 1.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

WORLD_SIZES = (2, 4, 8)
REPEATS = 7
ELEMENTS = 1024


class Link:
    """Sends and receives of the first `size` ranks; each message takes `latency` seconds longer
    than it would.
    """

    def __init__(self, size: int, latency: float) -> None:
        self.rank, self.size, self.latency = dist.get_rank(), size, latency

    def send(self, value: Tensor, to: int) -> None:
        """Blocks as long as the message travels."""
        time.sleep(self.latency)
        dist.send(value, to)

    def receive(self, like: Tensor, source: int) -> Tensor:
        """The tensor that `source` sends."""
        value = torch.empty_like(like)
        dist.recv(value, source)
        return value


def broadcast_in_a_row(link: Link, value: Tensor) -> Tensor:
    """Rank 0 sends to one after the other: n - 1 messages, one at a time."""
    if link.rank:
        return link.receive(value, 0)
    for other in range(1, link.size):
        link.send(value, other)
    return value


def broadcast(link: Link, value: Tensor) -> Tensor:
    """In round k the 2^k ranks that have it send it to 2^k that do not."""
    for bit in range(rounds(link.size)):
        reached = 1 << bit
        if link.rank < reached and link.rank + reached < link.size:
            link.send(value, link.rank + reached)
        elif reached <= link.rank < 2 * reached:
            value = link.receive(value, link.rank - reached)
    return value


def reduce(link: Link, value: Tensor) -> Tensor:
    """A broadcast backwards: of the ranks that are left the upper half sends, the lower adds. Rank
    0 has the sum.
    """
    for bit in reversed(range(rounds(link.size))):
        half = 1 << bit
        if half <= link.rank < 2 * half:
            link.send(value, link.rank - half)
        elif link.rank < half and link.rank + half < link.size:
            value = value + link.receive(value, link.rank + half)
    return value


def all_reduce(link: Link, value: Tensor) -> Tensor:
    """Reduce, then broadcast: 2 log2 n rounds. (Large tensors go around a ring instead: see the
    README.)
    """
    return broadcast(link, reduce(link, value))


def rounds(size: int) -> int:
    """How deep the tree is."""
    return math.ceil(math.log2(size))


def measure(link: Link, operation: Callable[[Link, Tensor], Tensor]) -> tuple[float, Tensor]:
    """Milliseconds, in the fastest of the repeats, until the slowest rank has finished, and this
    rank's result.
    """
    times, result = [], torch.zeros(ELEMENTS)
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        if link.rank < link.size:
            result = operation(link, torch.full((ELEMENTS,), float(link.rank + 1)))
        dist.barrier()
        times.append(time.perf_counter() - start)
    return 1000 * min(times), result


def run(rank: int, folder: str, latency: float) -> None:
    """Run one rank of the largest group; smaller groups are its first ranks."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZES[-1]
    )
    if rank == 0:
        print("ranks  rounds  one by one  broadcast   reduce  all-reduce   (ms)", flush=True)
    for size in WORLD_SIZES:
        link = Link(size, latency)
        line = [
            measure(link, operation)
            for operation in (broadcast_in_a_row, broadcast, reduce, all_reduce)
        ]
        if rank == 0:
            figures = "  ".join(f"{milliseconds:9.1f}" for milliseconds, _ in line)
            print(f"{size:5}  {rounds(size):6}  {figures}", flush=True)
        if rank < size:
            assert torch.equal(line[1][1], torch.ones(ELEMENTS)), "everybody has rank 0's tensor"
            assert torch.equal(line[3][1], torch.full((ELEMENTS,), size * (size + 1) / 2)), (
                "everybody has the sum"
            )
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency-ms", type=float, default=5.0, help="added to every message")
    latency = parser.parse_args().latency_ms / 1000
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with TemporaryDirectory() as folder:
        mp.start_processes(run, (folder, latency), nprocs=WORLD_SIZES[-1], start_method="fork")


if __name__ == "__main__":
    main()
