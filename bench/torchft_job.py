"""The same small training under torchft: each node is a replica group of one rank, the state comes
from the others.

torchrun --nnodes=1 ... bench/torchft_job.py FOLDER NAME ADDRESS LIGHTHOUSE COLLECTIVE_SECONDS
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torchft  # type: ignore[import-not-found]

from bench import stuck
from bench.recovery_job import Stream, loss_of, make_model, note
from bench.recovery_settings import LEAST_WORKERS

LIGHTHOUSE_RETRIES = 20


def train(
    folder: Path, name: str, address: str, lighthouse: str, collective_seconds: float
) -> None:
    """Train until the process is killed."""
    bare, stream = make_model(), Stream()
    bare_optimizer = torch.optim.AdamW(bare.parameters(), lr=1e-3)

    def load(state: dict[str, Any]) -> None:
        bare.load_state_dict(state["model"])
        bare_optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=collective_seconds)),
        load_state_dict=load,
        state_dict=lambda: {"model": bare.state_dict(), "optimizer": bare_optimizer.state_dict()},
        min_replica_size=LEAST_WORKERS,
        use_async_quorum=False,  # the share of the batch must be known before the forward pass
        timeout=timedelta(seconds=collective_seconds),
        quorum_retries=LIGHTHOUSE_RETRIES,
        replica_id=name,
        hostname=address,
        lighthouse_addr=lighthouse,
    )
    model = torchft.DistributedDataParallel(manager, bare)
    optimizer = torchft.Optimizer(manager, bare_optimizer)
    while True:
        optimizer.zero_grad()
        step, rank, size = (
            manager.current_step() + 1,
            manager.participating_rank(),
            manager.num_participants(),
        )
        stuck.take_name(rank)
        loss = loss_of(model, stream.share(step, rank, size))
        loss.backward()  # type: ignore[no-untyped-call]
        mean = loss.detach().clone()
        manager.allreduce(mean).wait()
        optimizer.step()
        if manager.current_step() < step:
            notice(folder)
        elif rank == 0:
            note(folder, step, size, mean.item())


def notice(folder: Path) -> None:
    """Record that a step was not committed."""
    with (folder / f"noticed-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"time": time.time()}) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    stuck.listen()
    train(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5]))
