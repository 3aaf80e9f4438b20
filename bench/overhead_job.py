"""A training in which the framework is all there is to time: one weight, one sample a step.

    python bench/overhead_job.py SUBJECT STEPS OUTPUT

Each subject trains the same model with the same optimizer on the same data set, read by torch's
DataLoader. A step is timed where all of them pass: when its sample is fetched. OUTPUT gets
milliseconds per step and megabytes as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BLOCK = 100
"""Steps of which a mean is taken; the result is the median of the means, the first quarter left
out.
"""


class Ticks(Dataset[tuple[Tensor, Tensor]]):
    """One sample under many numbers; records when each is fetched."""

    def __init__(self, steps: int) -> None:
        self._count = steps
        self._sample = (torch.ones(1), torch.zeros(1))
        self.times: list[float] = []

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.times.append(time.perf_counter())
        return self._sample

    def milliseconds(self) -> float:
        """Milliseconds per step."""
        steady = self.times[len(self.times) // 4 :]
        starts = steady[::BLOCK]
        return statistics.median((b - a) / BLOCK for a, b in pairwise(starts)) * 1000


def make_model() -> nn.Module:
    """As small as a model can be."""
    return nn.Linear(1, 1)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """The same for all."""
    return torch.optim.SGD(model.parameters(), lr=1e-6)


def bare(data: Ticks, _steps: int) -> None:
    """A loop without a framework."""
    model = make_model()
    optimizer = make_optimizer(model)
    for inputs, targets in DataLoader(data, shuffle=True):
        F.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def regroup(data: Ticks, steps: int) -> None:
    """Session, under an agent and a coordinator."""
    from regroup_trainer import Session

    session = Session()
    model = session.prepare(make_model())
    session.attach(make_optimizer(model))
    for inputs, targets in session.batches(data, steps, global_batch_size=1):
        session.backward(F.mse_loss(model(inputs), targets))
        session.step()


def accelerate(data: Ticks, _steps: int) -> None:
    """Hugging Face accelerate."""
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=True)
    bare_model = make_model()
    model, optimizer, loader = accelerator.prepare(
        bare_model, make_optimizer(bare_model), DataLoader(data, shuffle=True)
    )
    for inputs, targets in loader:
        accelerator.backward(F.mse_loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()


def lightning(data: Ticks, steps: int) -> None:
    """Lightning, without logger, progress bar and checkpoints."""
    from lightning import LightningModule, Trainer

    class TicksModule(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def training_step(self, batch: list[Tensor]) -> Tensor:
            return F.mse_loss(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.model)

    trainer = Trainer(
        max_steps=steps,
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(TicksModule(), DataLoader(data, shuffle=True))


def hf(data: Ticks, steps: int) -> None:
    """Hugging Face transformers' Trainer, without reports, progress bar and checkpoints."""
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def forward(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
            return {"loss": F.mse_loss(self.model(inputs), targets)}

    def collate(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        inputs, targets = zip(*samples, strict=True)
        return {"inputs": torch.stack(inputs), "targets": torch.stack(targets)}

    model = Model()
    arguments = TrainingArguments(
        output_dir="unused",
        max_steps=steps,
        per_device_train_batch_size=1,
        max_grad_norm=0.0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
    )
    optimizers: Any = (make_optimizer(model), None)
    Trainer(
        model, arguments, data_collator=collate, train_dataset=data, optimizers=optimizers
    ).train()


SUBJECTS: dict[str, Callable[[Ticks, int], None]] = {
    "bare": bare,
    "regroup": regroup,
    "accelerate": accelerate,
    "lightning": lightning,
    "hf": hf,
}


def resident_megabytes() -> float:
    """Resident memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def main(subject: str, steps: int, output: Path) -> None:
    """Train, then write the figures to `output`."""
    torch.set_num_threads(1)
    data = Ticks(steps)
    SUBJECTS[subject](data, steps)
    output.write_text(
        json.dumps({"milliseconds": data.milliseconds(), "megabytes": resident_megabytes()})
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
