"""A user's program with a custom loop that can go wrong in several ways."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn

from regroup_trainer import Session


class Points:
    """Points of two clouds."""

    def __init__(self, count: int, data: str = "") -> None:
        generator = torch.Generator().manual_seed(2 if data == "other" else 1)
        if data == "unseeded":
            generator.seed()
        self.labels = torch.randint(2, (count,), generator=generator)
        self.points = torch.randn(count, 8, generator=generator) + self.labels[:, None]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.points[index], self.labels[index]


class Count:
    """Counts steps, in a state whose structure changes."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "values": list(range(int(self.value) % 3))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.value = state_dict["value"]


class Net(nn.Module):
    """A stack and a head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = torch.relu(block(inputs))
        return self.head(self.dropout(inputs))  # type: ignore[no-any-return]


def read_options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--data", default="")
    parser.add_argument("--directory")
    parser.add_argument("--count-file", type=Path)
    parser.add_argument("--fail", default="")
    parser.add_argument("--fail-after", type=int, default=1, help="steps")
    parser.add_argument("--step-seconds", type=float, default=0.0)
    return parser.parse_args()


def main() -> None:
    options = read_options()
    session = Session(
        seed=3,
        directory=options.directory,
        save_every_steps=4,
        non_finite="stop" if options.fail == "not-finite" else "skip",
    )
    model = session.prepare(Net(options.dropout), strategy=options.strategy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    count = Count(numpy.array(0, dtype=object) if options.fail == "array" else 0)
    if options.fail != "no-optimizer":
        session.attach(optimizer, scheduler, gradient_clip=0.5, count=count)

    def measure(batch: list[Tensor]) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    points = options.points + (session.rank if options.data == "larger" else 0)
    for inputs, labels in session.batches(
        Points(points, options.data), options.steps, 10, options.micro_batch
    ):
        if options.fail == "slow" and session.rank == 1:
            time.sleep(0.05)
        bad = options.fail == "not-finite" and session.steps == 2
        session.backward(F.cross_entropy(model(inputs), labels) * (float("inf") if bad else 1.0))
        if options.fail == "twice":
            session.backward(F.cross_entropy(model(inputs), labels))
        if options.fail == "no-step":
            continue
        time.sleep(options.step_seconds)
        if session.step():
            count.value += 1
            if session.steps % 3 == 0 and options.steps < 100:
                session.log(loss=session.evaluate(Points(7), measure, batch_size=2)["loss"])
            if options.fail == "raise" and session.steps == options.fail_after:
                raise ValueError("a bug of the user's own")
            if options.fail == "exit" and session.steps == options.fail_after:
                sys.exit(3)
    if options.count_file:
        options.count_file.write_text(json.dumps(count.value))


if __name__ == "__main__":
    main()
