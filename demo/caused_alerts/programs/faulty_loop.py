"""A custom loop that trains well until a file beside its checkpoints names a fault."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn

from regroup_trainer import Session
from regroup_trainer.system.memory_limit import available_bytes

SWITCH = Path(os.environ["REGROUP_DIRECTORY"], "fault")
SAMPLES, INPUTS, BATCH = 4096, 8, 8
STEPS = 1_000_000
PACE_SECONDS = 0.1
READ_SECONDS = 0.1
"""So long a sample takes where the storage is slow: a batch takes eight times as long as a step."""
WRONG_BY = 10.0
"""So much is added to targets that are wrong. The model has no bias, and cannot learn it."""
BLOCK = 8 * 2**20
LEFT = 5 * BLOCK
"""Bytes of the container that are left over when all that may be taken is taken."""


def fault() -> str:
    """The fault that the file names; empty while there is none."""
    try:
        return SWITCH.read_text().strip()
    except OSError:
        return ""


class Numbers:
    """Inputs, and their sum with some noise."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if fault() == "slow storage":
            time.sleep(READ_SECONDS)
        generator = torch.Generator().manual_seed(index)
        inputs = torch.randn(INPUTS, generator=generator)
        return inputs, inputs.sum(0, keepdim=True) + torch.randn(1, generator=generator)


def leak(blocks: list[bytearray]) -> None:
    """Take memory until little is left, or give all back."""
    if fault() != "memory leak":
        blocks.clear()
        return
    while available_bytes() > LEFT:
        blocks.append(bytearray(b"x") * BLOCK)


def main() -> None:
    """Train."""
    session = Session(seed=0)
    model = session.prepare(nn.Linear(INPUTS, 1, bias=False))
    session.attach(torch.optim.SGD(model.parameters(), lr=0.001))
    blocks: list[bytearray] = []
    for inputs, targets in session.batches(Numbers(), steps=STEPS, global_batch_size=BATCH):
        if fault() == "corrupt shard":
            raise RuntimeError("shard 7 of the data set is corrupt")
        wrong = WRONG_BY if fault() == "wrong targets" else 0.0
        session.backward(F.mse_loss(model(inputs), targets + wrong))
        session.step()
        leak(blocks)
        time.sleep(PACE_SECONDS)


if __name__ == "__main__":
    main()
