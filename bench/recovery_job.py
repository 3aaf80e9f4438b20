"""A small training for stock elastic agents, as their documentation recommends: resume from the
newest snapshot.

    torchrun ... bench/recovery_job.py FOLDER SAVE_EVERY COLLECTIVE_SECONDS

It trains the same model on the same samples in the same order as the other subjects. The global
batch is constant. Each process records its steps in a file of its own in FOLDER. Under ft_launcher,
it sends heartbeats to it. COLLECTIVE_SECONDS is the time limit of a collective; 0: torch's default.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench import stuck
from bench.recovery_settings import GLOBAL_BATCH, MODEL, SAMPLES, SEQUENCE_LENGTH, VOCABULARY
from regroup_trainer import models
from regroup_trainer.data.order import SampleOrder
from regroup_trainer.data.order_arrays import ids
from regroup_trainer.data.synthetic import load_synthetic
from regroup_trainer.models.initialize import initialize
from regroup_trainer.protocol.config import DataConfig

FT_SOCKET = "FT_RANK_MONITOR_IPC_SOCKET"
"""Set by ft_launcher."""


class Stream:
    """The batches, by step."""

    def __init__(self) -> None:
        config = DataConfig(source="synthetic", samples=SAMPLES, classes=VOCABULARY)
        self._data = load_synthetic(config, SEQUENCE_LENGTH)
        self._order = SampleOrder(self._data.samples, seed=0)

    def share(self, step: int, rank: int, world_size: int) -> tuple[Tensor, Tensor]:
        """A rank's part of the batch of a step: inputs and targets, each [B, T]."""
        first = (step - 1) * GLOBAL_BATCH
        found = self._data.read_training(
            ids(self._order, range(first, first + GLOBAL_BATCH))[rank::world_size]
        )
        return torch.from_numpy(found.inputs), torch.from_numpy(found.targets)


def make_model() -> nn.Module:
    """The same weights everywhere."""
    model = models.build(MODEL, VOCABULARY).to_empty(device="cpu")
    initialize(model, model, 0)
    return model


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean over the tokens of a rank's part; parts are of equal size."""
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def train(folder: Path, save_every: int, collective_seconds: float) -> None:
    """Train until the process is killed."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    stuck.take_name(rank)
    beat = heartbeats()
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    snapshot, stream = folder / "snapshot.pt", Stream()
    step = load(snapshot, model, optimizer)
    dist.barrier()
    if collective_seconds:
        dist.set_timeout(timedelta(seconds=collective_seconds))
    while True:
        step += 1
        optimizer.zero_grad()
        loss = loss_of(model, stream.share(step, rank, world_size))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        beat()
        if rank == 0:
            note(folder, step, world_size, mean.item())
            if step % save_every == 0:
                save(snapshot, model, optimizer, step)


def heartbeats() -> Callable[[], None]:
    """The function that sends a heartbeat to ft_launcher; it does nothing under another agent."""
    if FT_SOCKET not in os.environ:
        return lambda: None
    from nvidia_resiliency_ext.fault_tolerance import (  # type: ignore[import-not-found]
        RankMonitorClient,
    )

    client: Any = RankMonitorClient()
    client.init_workload_monitoring()
    return client.send_heartbeat  # type: ignore[no-any-return]


def load(snapshot: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> int:
    """The step of the snapshot, 0 where there is none."""
    if not snapshot.exists():
        return 0
    state = torch.load(snapshot, weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def save(
    snapshot: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int
) -> None:
    """Replace the snapshot atomically."""
    unfinished = snapshot.with_suffix(f".{os.getpid()}")
    torch.save(
        {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
        unfinished,
    )
    unfinished.rename(snapshot)


def note(folder: Path, step: int, size: int, loss: float) -> None:
    """A line for a committed step; the process id of rank 0 and the size name the generation."""
    line = json.dumps(
        {
            "step": step,
            "size": size,
            "generation": f"{os.getpid()}-{size}",
            "time": time.time(),
            "loss": loss,
        }
    )
    with (folder / f"steps-{os.getpid()}.jsonl").open("a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    stuck.listen()
    train(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
