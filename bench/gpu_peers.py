"""The other subjects of bench/gpu.py, each in a process of its own: a bare loop, Lightning, Hugging
Face's Trainer.

`python -m bench.gpu_peers SUBJECT JOB FOLDER` trains the job (JSON) and prints its times as JSON.
All train our model on the same tokens with fused AdamW, clipping, autocast to bf16 and, if the job
says so, torch.compile.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from bench.gpu_job import Job
from regroup_trainer import models
from regroup_trainer.models.initialize import initialize

if TYPE_CHECKING:
    from lightning import LightningModule

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LEARNING_RATE = 3e-4
_SAMPLES = 4096
_EPOCH = 2**20
LOADED = {"num_workers": 0, "pin_memory": DEVICE.type == "cuda"}


@dataclass
class Clock:
    """Wall times of steps, taken when the device is done."""

    job: Job
    first: float = 0.0
    times: dict[int, float] = field(default_factory=dict)

    def step(self, number: int) -> None:
        """Note the end of optimizer step 1, 2, ... of this run."""
        if number in (1, self.job.warm, self.job.steps):
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            self.times[number] = time.time()

    def report(self) -> dict[str, float]:
        """The times that the parent process reads."""
        window = self.times[self.job.steps] - self.times[self.job.warm]
        return {
            "first_step": self.times[1],
            "seconds_per_step": window / (self.job.steps - self.job.warm),
        }


class Tokens(Dataset[dict[str, Tensor]]):
    """Random sequences, made once."""

    def __init__(self, job: Job) -> None:
        generator = torch.Generator().manual_seed(0)
        self.text = torch.randint(0, job.classes, (_SAMPLES, job.length + 1), generator=generator)

    def __len__(self) -> int:
        return _EPOCH

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        sequence = self.text[index % _SAMPLES]
        return {"input_ids": sequence[:-1], "labels": sequence[1:]}


def build(job: Job) -> nn.Module:
    """Our model with memory on the device."""
    model = models.build(job.config, job.classes).to_empty(device=DEVICE)
    initialize(model, model, 0)
    return model


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross entropy."""
    logits = model(batch["input_ids"])
    return F.cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten())


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """The optimizer of all subjects."""
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), fused=True)


def bare(job: Job, clock: Clock, folder: Path) -> None:
    """A loop without any framework; saves with torch.save."""
    model = build(job)
    optimizer = adamw(model)
    snapshot = folder / "bare.pt"
    if job.resume:
        state = torch.load(snapshot, map_location=DEVICE, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    measure = torch.compile(loss_of) if job.compile else loss_of
    batches = _batches(job)
    for step in range(1, job.steps + 1):
        for _ in range(job.accumulation):
            batch = {
                name: tensor.to(DEVICE, non_blocking=True) for name, tensor in next(batches).items()
            }
            with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
                loss = measure(model, batch) / job.accumulation
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if job.save_every and step % job.save_every == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, snapshot)
        clock.step(step)


def _batches(job: Job) -> Iterator[dict[str, Tensor]]:
    loader = DataLoader(Tokens(job), batch_size=job.micro_batch, **LOADED)  # type: ignore[arg-type]
    return iter(loader)


def _lightning_module(job: Job) -> LightningModule:
    """The model, with the optimizer and the clipping of all subjects."""
    from lightning import LightningModule

    class LightningModel(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = build(job)

        def training_step(self, batch: dict[str, Tensor], _number: int) -> Tensor:
            return loss_of(self.model, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adamw(self.model)

        def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
            # Its own clipping refuses fused optimizers, whether or not anything is scaled.
            nn.utils.clip_grad_norm_(self.parameters(), 1.0)

    module = LightningModel()
    if job.compile:
        module.model.compile()
    return module


def lightning(job: Job, clock: Clock, folder: Path) -> None:
    """A LightningModule around the model."""
    from lightning import Callback, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    class LightningTiming(Callback):
        passes = 0

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            self.passes += 1
            if self.passes % job.accumulation == 0:
                clock.step(self.passes // job.accumulation)

    saved = folder / "last.ckpt"
    saving = (
        [ModelCheckpoint(folder, save_last=True, every_n_train_steps=job.save_every)]
        if job.save_every
        else []
    )
    trainer = Trainer(
        accelerator="auto",
        devices=1,
        max_steps=job.steps * (2 if job.resume else 1),
        accumulate_grad_batches=job.accumulation,
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=bool(saving),
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*saving, LightningTiming()],
        default_root_dir=folder,
    )
    data = DataLoader(Tokens(job), batch_size=job.micro_batch, **LOADED)  # type: ignore[arg-type]
    trainer.fit(_lightning_module(job), data, ckpt_path=saved if job.resume else None)


def hf(job: Job, clock: Clock, folder: Path) -> None:
    """Hugging Face's Trainer around the model."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class TrainerModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = build(job)

        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": loss_of(self.model, {"input_ids": input_ids, "labels": labels})}

    class TrainerTiming(TrainerCallback):
        done = 0

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.done += 1
            clock.step(self.done)

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=job.steps * (2 if job.resume else 1),
        per_device_train_batch_size=job.micro_batch,
        gradient_accumulation_steps=job.accumulation,
        learning_rate=LEARNING_RATE,
        optim="adamw_torch_fused",
        bf16=True,
        use_cpu=DEVICE.type == "cpu",
        torch_compile=job.compile,
        save_strategy="steps" if job.save_every else "no",
        save_steps=job.save_every or 500,
        save_total_limit=1,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        TrainerModel(), arguments, train_dataset=Tokens(job), callbacks=[TrainerTiming()]
    )
    trainer.train(resume_from_checkpoint=True if job.resume else None)


SUBJECTS = {"bare": bare, "lightning": lightning, "hf": hf}


def main(subject: str, job: str, folder: str) -> None:
    """Train and print."""
    warnings.simplefilter("ignore")
    if DEVICE.type == "cpu":
        torch.set_num_threads(1)  # as a rank of ours has
    read = Job(**json.loads(job))
    clock = Clock(read)
    SUBJECTS[subject](read, clock, Path(folder))
    parameters = sum(
        tensor.numel() for tensor in models.build(read.config, read.classes).parameters()
    )
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"
    print(json.dumps({**clock.report(), "parameters": parameters, "device": name}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
