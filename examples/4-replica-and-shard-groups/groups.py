"""All ranks as a matrix of replica groups and shard groups, and a metric averaged over all of it.

    torchrun --standalone --nproc-per-node=4 groups.py --shard-size 2

Every row of the matrix is a shard group: its ranks hold the parts of one copy of the model. Every
column is a replica group: its ranks hold the same part, and average its gradient.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

BATCH, STEPS = 12, 20


def matrix(world_size: int, shard_size: int) -> Tensor:
    """Ranks [n_replica, shard_size]. Neighbours share a copy: they talk most, and are on one
    machine.
    """
    if world_size % shard_size:
        raise SystemExit(
            f"--shard-size {shard_size} does not divide the world size {world_size}: "
            "choose a divisor"
        )
    return torch.arange(world_size).view(world_size // shard_size, shard_size)


def device() -> torch.device:
    """LOCAL_RANK counts on this machine: it names the device. RANK names the place in the
    matrix.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(chosen)
    return chosen


def averaged(metric: Tensor) -> Tensor:
    """Over all ranks. NCCL averages by itself; gloo sums, and we divide."""
    metric = metric.detach().clone()
    if dist.get_backend() == "nccl":
        dist.all_reduce(metric, op=dist.ReduceOp.AVG)
        return metric
    dist.all_reduce(metric, op=dist.ReduceOp.SUM)
    return metric / dist.get_world_size()


def build() -> nn.Sequential:
    """The same parameters on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The global batch of a step."""
    inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))
    return inputs, inputs.sum(1, keepdim=True)


def train(model: nn.Module, rank: int, size: int, place: torch.device) -> list[float]:
    """Losses over all ranks; every rank updates only the parameters that it holds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        inputs, targets = (part[rank::size].to(place) for part in batch(step))
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(averaged(loss) if dist.is_initialized() else loss.detach()))
    return losses


def main() -> None:
    """Print the groups, train sharded and replicated, and compare with one process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shard-size", type=int, default=2, help="ranks that share one copy of the model"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    alone = train(build(), 0, 1, torch.device("cpu"))
    place = device()
    dist.init_process_group(
        "nccl" if place.type == "cuda" else "gloo"
    )  # env://: torchrun has set the addresses
    rank, size = dist.get_rank(), dist.get_world_size()
    ranks = matrix(size, options.shard_size)
    # The matrix is all that DeviceMesh needs. With two dimensions fully_shard shards along the last
    # and replicates along the first: hybrid sharding.
    mesh = DeviceMesh(place.type, ranks, mesh_dim_names=("replicate", "shard"))
    model = build().to(place)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = train(model, rank, size, place)
    replicas = dist.get_process_group_ranks(mesh.get_group("replicate"))
    shards = dist.get_process_group_ranks(mesh.get_group("shard"))
    held = sum(p.to_local().numel() for p in model.parameters() if isinstance(p, DTensor))
    lines: list[str] = [""] * size
    dist.all_gather_object(
        lines,
        f"rank {rank}: shard group {shards}, replica group {replicas}, {held} parameters here",
    )
    if rank == 0:
        print(f"{size} ranks as {list(ranks.shape)}: {ranks.tolist()}", *lines, sep="\n")
        worst = max(abs(ours - one) / one for ours, one in zip(losses, alone, strict=True))
        print(
            f"loss {losses[0]:.4f} -> {losses[-1]:.4f}; differs from one process by {worst:.1e} at "
            "most"
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
