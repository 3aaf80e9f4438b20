"""DataParallel, DDP, ZeRO and FSDP on the same network and the same global batch: memory and
throughput in one table.

python compare.py --ranks 2 --steps 30
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from digits import Network, load_digits
from memory import megabytes_of_state
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import AdamW, Optimizer

GLOBAL_BATCH = 128
WARM_UP = 3
Row = tuple[str, int, float, float]
"""Way, processes, images/s, MB of state per rank."""


def data_parallel() -> tuple[nn.Module, Optimizer]:
    """One process: on GPUs it copies the model to each of them anew in every step, and its threads
    share one GIL.
    """
    model = DataParallel(Network())
    return model, AdamW(model.parameters())


def ddp() -> tuple[nn.Module, Optimizer]:
    """A process per rank, each with all of the model; gradients are averaged while backward still
    runs.
    """
    model = DistributedDataParallel(Network())
    return model, AdamW(model.parameters())


def zero() -> tuple[nn.Module, Optimizer]:
    """DDP, but each rank keeps the optimizer state of its part of the parameters only."""
    model = DistributedDataParallel(Network())
    return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=AdamW)


def fsdp() -> tuple[nn.Module, Optimizer]:
    """Each rank keeps its shard of parameters, gradients and optimizer state; layers are gathered
    when they compute.
    """
    model = Network()
    for layer in model:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            fully_shard(layer)
    fully_shard(model)
    return model, AdamW(model.parameters())


WAYS: dict[str, Callable[[], tuple[nn.Module, Optimizer]]] = {
    "DataParallel": data_parallel,
    "DDP": ddp,
    "DDP + ZeRO": zero,
    "FSDP": fsdp,
}


def run_rank(
    rank: int, way: str, ranks: int, steps: int, meeting: str, results: SimpleQueue[Row]
) -> None:
    """The life of one process."""
    processes = 1 if way == "DataParallel" else ranks
    torch.set_num_threads(max(1, ranks // processes))  # the same cores for all
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes
    )
    torch.manual_seed(0)
    model, optimizer = WAYS[way]()
    seconds = train(model, optimizer, GLOBAL_BATCH // processes, steps)
    if rank == 0:
        results.put(
            (way, processes, steps * GLOBAL_BATCH / seconds, megabytes_of_state(model, optimizer))
        )
    dist.barrier()
    dist.destroy_process_group()


def train(model: nn.Module, optimizer: Optimizer, batch: int, steps: int) -> float:
    """Seconds that `steps` took, after a warm-up. Every rank takes another part of the images."""
    images, labels, _ = load_digits()
    part, parts = dist.get_rank(), dist.get_world_size()
    images, labels = images[part::parts], labels[part::parts]
    start = 0.0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            dist.barrier()
            start = time.perf_counter()
        at = step * batch % (len(labels) - batch)
        optimizer.zero_grad()
        F.cross_entropy(model(images[at : at + batch]), labels[at : at + batch]).backward()
        optimizer.step()
    dist.barrier()
    return time.perf_counter() - start


def measure(way: str, ranks: int, steps: int) -> Row:
    """One way in processes of its own, started by mp.spawn."""
    results: SimpleQueue[Row] = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes = 1 if way == "DataParallel" else ranks
        mp.spawn(run_rank, (way, ranks, steps, f"{folder}/meeting", results), nprocs=processes)
    return results.get()


def main() -> None:
    """Measure all and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--rounds", type=int, default=2, help="measure all so often; the best counts"
    )
    given = parser.parse_args()
    rounds = [[measure(way, given.ranks, given.steps) for way in WAYS] for _ in range(given.rounds)]
    print(f"{'':14}{'processes':>10}{'images/s':>10}{'MB of state per rank':>22}")
    for rows in zip(*rounds, strict=True):
        name, processes, speed, megabytes = max(
            rows, key=lambda row: row[2]
        )  # the round that was disturbed least
        print(f"{name:14}{processes:>10}{speed:>10.0f}{megabytes:>22.1f}")


if __name__ == "__main__":
    main()
