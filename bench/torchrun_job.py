"""A small training under stock torchrun, written as its documentation recommends: resume from the newest snapshot.

    torchrun ... bench/torchrun_job.py FOLDER SAVE_EVERY

It trains the same model as the other subject, and notes each step in FOLDER/steps.jsonl.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch.nn.parallel import DistributedDataParallel

from regroup_trainer.config import ModelConfig
from regroup_trainer.models import GPT

BATCH, LENGTH, VOCABULARY = 2, 64, 256


def main(folder: Path, save_every: int) -> None:
    """Train for ever."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(ModelConfig(preset="tiny"), VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    snapshot = folder / "snapshot.pt"
    step = load(snapshot, model, optimizer)
    while True:
        step += 1
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if dist.get_rank() == 0:
            note(folder, step)
            if step % save_every == 0:
                save(snapshot, model, optimizer, step)


def load(snapshot: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> int:
    """The step of the snapshot, 0 where there is none."""
    if not snapshot.exists():
        return 0
    state = torch.load(snapshot, weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def save(snapshot: Path, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Replace the snapshot atomically."""
    unfinished = snapshot.with_suffix(".unfinished")
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, unfinished)
    unfinished.rename(snapshot)


def note(folder: Path, step: int) -> None:
    """One line for a step; rank 0's process id tells the worlds apart."""
    line = json.dumps({"step": step, "world": os.getpid(), "time": time.time()})
    with (folder / "steps.jsonl").open("a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
