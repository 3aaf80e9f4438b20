"""Elastic training as most scripts do it: each worker's loss is a mean, and DDP takes the mean of
these means.

Model, samples, order, optimizer and schedule are those of the built-in trainer.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.elastic_ranks import Recorder
from regroup_trainer import data as datasets
from regroup_trainer import models
from regroup_trainer.data import order_arrays
from regroup_trainer.data.batch import share
from regroup_trainer.data.order import SampleOrder
from regroup_trainer.models.initialize import initialize
from regroup_trainer.parallel import process_group
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.protocol.rank_messages import Progress
from regroup_trainer.step.optimizer import build_optimizer, learning_rate, set_learning_rate


def run(assignment: Assignment, recorder: Recorder) -> None:
    """Train one generation from the file that the previous one saved."""
    torch.set_num_threads(1)
    directory, config = Path(assignment.record.desired.directory), assignment.record.desired.train
    group = process_group.join(assignment)
    data = datasets.load(config, directory)
    model = models.build(config.model, data.classes).to_empty(device="cpu")
    initialize(model, model, config.training.seed)
    optimizer = build_optimizer(model, config.optimizer)
    saved = directory / "naive.pt"
    first = load(saved, model, optimizer) if saved.exists() else 0
    ddp = DistributedDataParallel(model)
    for step in range(first, recorder.last):
        inputs, targets = read(data, config, step, group.rank, group.size)
        set_learning_rate(
            optimizer, learning_rate(step + 1, config.training.steps, config.optimizer)
        )
        loss = F.cross_entropy(ddp(inputs).flatten(0, -2), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), config.training.gradient_clip)
        optimizer.step()
        optimizer.zero_grad()
        record_loss(assignment, recorder, step + 1, loss.detach(), group.size)
    dist.barrier()
    if group.is_rank0:
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": recorder.last,
            },
            saved,
        )
    process_group.leave()


def read(
    data: datasets.Dataset, config: TrainConfig, step: int, rank: int, size: int
) -> tuple[Tensor, Tensor]:
    """The rank's part of the step's global batch."""
    count = config.training.global_batch_size
    ids = order_arrays.ids(
        SampleOrder(data.samples, config.training.seed), range(step * count, (step + 1) * count)
    )
    own = share(count, rank, size)
    arrays = data.read_training(ids[own.start : own.stop])
    return torch.from_numpy(arrays.inputs), torch.from_numpy(arrays.targets)


def load(saved: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Fill both from the file; returns the steps done."""
    state: dict[str, Any] = torch.load(saved)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def record_loss(
    assignment: Assignment, recorder: Recorder, step: int, loss: Tensor, size: int
) -> None:
    """Record the mean of all ranks' losses."""
    dist.all_reduce(loss)
    mean, number = float(loss) / size, assignment.record.number
    recorder.send(
        Progress(generation=number, rank=assignment.rank, step=step, time=time.time(), loss=mean)
    )
