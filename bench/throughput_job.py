"""Two ranks train a GPT of a million parameters, and take turns with another training.

    torchrun ... bench/throughput_job.py SUBJECT STRATEGY PAIRS STEPS FOLDER

All subjects train the same model on the same batches with the same optimizer, in blocks of STEPS.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench.turns import RANKS, Turns, steps_for
from regroup_trainer import models
from regroup_trainer.models.initialize import initialize
from regroup_trainer.protocol.config import ModelConfig

BATCH, LENGTH, VOCABULARY = 4, 128, 256
"""Samples of a rank, tokens of a sample."""


class FixedTokens(Dataset[tuple[Tensor, Tensor]]):
    """Sequences that are the same in every run."""

    def __init__(self, steps: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._tokens = torch.randint(VOCABULARY, (64, LENGTH + 1), generator=generator)
        self._count = steps * RANKS * BATCH

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        tokens = self._tokens[index % len(self._tokens)]
        return tokens[:-1], tokens[1:]


def make_model() -> models.Model:
    """On the CPU, initialised."""
    model = models.build(ModelConfig(preset="1m"), VOCABULARY).to_empty(device="cpu")
    initialize(model, model, 0)
    return model


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    """Mean cross entropy per token."""
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def bare(strategy: str, steps: int, tick: Callable[[], None]) -> None:
    """A loop as in torch's documentation."""
    dist.init_process_group("gloo")
    data = FixedTokens(steps)
    model: nn.Module = (
        shard(make_model()) if strategy == "fsdp" else DistributedDataParallel(make_model())
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data)):
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        tick()
    dist.barrier()  # else a process now and then aborts at its exit
    dist.destroy_process_group()


def shard(model: models.Model) -> nn.Module:
    """FSDP2 by blocks."""
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def regroup(strategy: str, steps: int, tick: Callable[[], None]) -> None:
    """A loop with Regroup's Session."""
    from regroup_trainer import Session

    session = Session(save_every_steps=10**6)
    model = session.prepare(make_model(), strategy="fsdp" if strategy == "fsdp" else "ddp")
    session.attach(torch.optim.AdamW(model.parameters(), lr=1e-3))
    for batch in session.batches(FixedTokens(steps), steps, global_batch_size=RANKS * BATCH):
        session.backward(loss_of(model, batch))
        session.step()
        tick()


def accelerate(strategy: str, steps: int, tick: Callable[[], None]) -> None:
    """Hugging Face accelerate. Raises RuntimeError when it does not shard though it was asked
    to.
    """
    from accelerate import (  # type: ignore[import-untyped]
        Accelerator,
        FullyShardedDataParallelPlugin,
    )

    blocks = {
        "auto_wrap_policy": "transformer_based_wrap",
        "transformer_cls_names_to_wrap": ["Block"],
    }
    plugin = (
        FullyShardedDataParallelPlugin(fsdp_version=2, **blocks) if strategy == "fsdp" else None
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    if plugin and accelerator.distributed_type != "FSDP":
        raise RuntimeError(
            f"accelerate takes {accelerator.distributed_type} in place of FSDP2 on CPUs, silently"
        )
    bare_model = make_model()
    loader = DataLoader(FixedTokens(steps), batch_size=BATCH, shuffle=True)
    model, optimizer, batches = accelerator.prepare(
        bare_model, torch.optim.AdamW(bare_model.parameters(), lr=1e-3), loader
    )
    for batch in batches:
        accelerator.backward(loss_of(model, batch))
        optimizer.step()
        optimizer.zero_grad()
        tick()
    accelerator.end_training()


def lightning(strategy: str, steps: int, tick: Callable[[], None]) -> None:
    """Lightning Fabric; sharded by its ModelParallelStrategy, which is FSDP2."""
    from lightning.fabric import Fabric
    from lightning.fabric.strategies.model_parallel import ModelParallelStrategy

    sharded = ModelParallelStrategy(
        lambda model, _mesh: shard(cast(models.Model, model)),
        data_parallel_size=RANKS,
        tensor_parallel_size=1,
    )
    fabric = Fabric(
        accelerator="cpu", devices=RANKS, strategy=sharded if strategy == "fsdp" else "ddp"
    )
    fabric.launch()
    model = fabric.setup(make_model())
    optimizer: Any = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
    for batch in fabric.setup_dataloaders(
        DataLoader(FixedTokens(steps), batch_size=BATCH, shuffle=True)
    ):
        fabric.backward(loss_of(model, batch))
        optimizer.step()
        optimizer.zero_grad()
        tick()


SUBJECTS = {"bare": bare, "regroup": regroup, "accelerate": accelerate, "lightning": lightning}


def main(subject: str, strategy: str, pairs: int, steps: int, folder: Path) -> None:
    """Train for at least `pairs` blocks."""
    torch.set_num_threads(1)
    SUBJECTS[subject](strategy, steps_for(pairs, steps), Turns(subject, steps, folder).tick)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
