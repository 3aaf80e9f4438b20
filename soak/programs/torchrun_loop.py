"""A plain DDP script for torchrun. It saves its state itself, and writes lineage and history in the
form that the checker reads.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from points import BATCH, PACE_SECONDS, SAMPLES, STEPS, make_model, make_samples
from torch.nn.parallel import DistributedDataParallel

SAVE_STEPS = 20


def main() -> None:
    """Train from the newest save on."""
    dist.init_process_group("gloo")
    folder = Path(os.environ["REGROUP_DIRECTORY"])
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = load(folder / "state.pt", model, optimizer)
    generation = begin(folder, step) if dist.get_rank() == 0 else 0
    inputs, targets = make_samples().tensors
    while step < STEPS:
        first = step * BATCH
        ids = [position % SAMPLES for position in range(first, first + BATCH)]
        loss = train(model, optimizer, inputs[ids], targets[ids])
        step += 1
        if dist.get_rank() == 0:
            described = {"step": step, "first": first, "count": BATCH, "hash": sum(ids)}
            note(folder, generation, {**described, "loss": loss})
            if step % SAVE_STEPS == 0:
                save(folder / "state.pt", model, optimizer, step)
        time.sleep(PACE_SECONDS)


def train(model: Any, optimizer: Any, inputs: Any, targets: Any) -> float:
    """One step on this rank's share; returns the mean loss of all samples."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs[mine]), targets[mine], reduction="sum") / targets.numel()
    (loss * dist.get_world_size()).backward()  # DDP takes the mean over ranks
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total)


def load(path: Path, model: Any, optimizer: Any) -> int:
    """Take over the newest save; returns its step. All ranks wait for the one that reads first."""
    found = torch.load(path, weights_only=True) if path.exists() else None
    chosen = torch.tensor(found["step"] if found else 0)
    dist.broadcast(chosen, 0)
    if found and found["step"] == int(chosen):
        model.module.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
    elif int(chosen):
        raise RuntimeError(f"rank 0 found step {int(chosen)}, this rank another")
    return int(chosen)


def save(path: Path, model: Any, optimizer: Any, step: int) -> None:
    """Replace the save."""
    state = {
        "model": model.module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
    }
    torch.save(state, path.with_suffix(".unfinished"))
    path.with_suffix(".unfinished").rename(path)


def begin(folder: Path, step: int) -> int:
    """Write what this generation resumed from; returns its number."""
    for part in ("lineage", "history"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    n = 1 + max((int(path.stem[2:]) for path in folder.glob("lineage/1-*.json")), default=0)
    record = {
        "generation": [1, n],
        "parent": [1, n - 1] if n > 1 else None,
        "resumed_from_step": step,
        "from_checkpoint": n > 1,
        "data": {"global_batch_size": BATCH},
    }
    unfinished = folder / "lineage" / "unfinished"
    unfinished.write_text(json.dumps(record))
    unfinished.rename(folder / "lineage" / f"1-{n}.json")
    return n


def note(folder: Path, generation: int, described: dict[str, Any]) -> None:
    """Append a step."""
    with (folder / "history" / f"1-{generation}.jsonl").open("a") as file:
        file.write(json.dumps({"generation": [1, generation], **described}) + "\n")


if __name__ == "__main__":
    main()
