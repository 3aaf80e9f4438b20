"""The classical way to survive a failure: rank 0 writes a checkpoint to a shared disk, all ranks
restart from it.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node=3
    --max-restarts=3 failover.py --folder FOLDER --kill rank=1@step=57

(Without that variable a restarted process group may read the addresses of the one before, and wait
for lost ranks.) A loop of one's own under stock torchrun; `job.yaml` is the same run under Regroup.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, SAVE_EVERY, BATCH = 100, 10, 12


def newest(folder: Path) -> Path | None:
    """The checkpoint that every rank loads: they must all see the same disk."""
    found = sorted(folder.glob("step-*.pt"))
    return found[-1] if found else None


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Rank 0 alone writes, under another name first: a file that exists is whole."""
    if dist.get_rank() == 0:
        unfinished = folder / "unfinished"
        torch.save(
            {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
            unfinished,
        )
        unfinished.rename(folder / f"step-{step:06}.pt")
    dist.barrier()


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step to go on from."""
    file = newest(folder)
    if file is None:
        return 0
    state = torch.load(file, map_location="cpu")  # each rank to its own device, not to rank 0's
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def die_once(folder: Path, kill: tuple[int, int] | None, step: int) -> None:
    """A real SIGKILL, the first time that this rank comes to this step."""
    if kill == (dist.get_rank(), step):
        with suppress(FileExistsError):
            (folder / "killed").touch(exist_ok=False)
            print(f"rank {kill[0]} is killed in step {step}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, kill: tuple[int, int] | None) -> float:
    """Train to the end; returns the last loss."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = load(folder, model, optimizer)
    # RANK counts over all machines, LOCAL_RANK on this machine: the latter chooses the device.
    print(
        f"RANK {os.environ['RANK']} LOCAL_RANK {os.environ['LOCAL_RANK']} of {size}, process "
        f"{os.getpid()}, "
        f"restart {os.environ['TORCHELASTIC_RESTART_COUNT']}: goes on from step {first}",
        flush=True,
    )
    loss = torch.zeros(())
    for step in range(first + 1, STEPS + 1):
        die_once(folder, kill, step)
        inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))[rank::size]
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % SAVE_EVERY == 0:
            save(folder, step, model, optimizer)
    mean = loss.detach()
    dist.all_reduce(mean)
    return float(mean) / size


def main() -> None:
    """One rank of torchrun."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=os.environ.get("REGROUP_DIRECTORY"), help="on a shared disk"
    )
    parser.add_argument("--kill", help="rank=1@step=57: kill that rank there, once")
    options = parser.parse_args()
    if options.folder is None:
        parser.error("--folder: is missing: name one on a disk that all machines share")
    options.folder.mkdir(parents=True, exist_ok=True)
    match = re.fullmatch(r"rank=(\d+)@step=(\d+)", options.kill or "")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    loss = train(options.folder, (int(match[1]), int(match[2])) if match else None)
    if dist.get_rank() == 0:
        print(f"done: step {STEPS}, loss {loss:.4f}", flush=True)
    dist.barrier()  # who leaves first closes connections that others may still need
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
