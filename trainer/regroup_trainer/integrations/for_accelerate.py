"""Accelerate in a job: batches from where the last whole checkpoint was taken, and saves between
them.

```python
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, targets in saved_batches(accelerator, loader, epochs=4, every_steps=50):
    ...
```

Accelerate saves and loads what was prepared or registered. Under plain torchrun and without a
launcher it does the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import RandomSampler

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.integrations.joint_saves import JointSaves
from regroup_trainer.integrations.plain_reading import plain_values_only
from regroup_trainer.integrations.required_library import require
from regroup_trainer.integrations.stop_agreement import (
    STOPPED,
    StopAgreement,
    is_rank0,
    require_joined,
)

LIBRARY, OLDEST = "accelerate", "1.2"
try:
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from accelerate.data_loader import (  # type: ignore[import-untyped]
        SeedableRandomSampler,
        get_sampler,
    )
except ImportError:
    require(LIBRARY, OLDEST)
    raise

POSITION_FILE = "regroup-position.json"


@dataclass
class _Position:
    """How far a run has come."""

    epoch: int = 0
    samples: int = 0
    """Of this epoch, on all ranks together."""
    step: int = 0
    """Batches of a rank since the beginning."""


def saved_batches(
    accelerator: Accelerator,
    loader: Any,
    epochs: int,
    *,
    every_steps: int | None = None,
    every_seconds: float | None = None,
    keep_last: int = 3,
) -> Iterator[Any]:
    """The batches of a prepared loader, from where the newest whole checkpoint was taken.

    What was prepared with the accelerator is loaded first. Code between two batches belongs to the
    first of them. Saves at the ends of epochs as well, and waits while gradients are accumulated.
    Upon SIGTERM it saves and raises SystemExit. Raises ConfigurationError for a loader whose order
    cannot be repeated, CheckpointError for a checkpoint that holds more than tensors and plain
    values.
    """
    require(LIBRARY, OLDEST)
    require_joined("on CPUs, Accelerator needs cpu=True, or `accelerate launch --cpu`")
    _require_repeatable(loader)
    saves = JointSaves(keep_last)
    position = _resume(accelerator, saves)
    agreement = StopAgreement(every_steps, every_seconds, position.step)
    is_stopping = is_due = False
    while position.epoch < epochs:
        for batch in _rest_of_epoch(accelerator, loader, position):
            yield batch
            _advance(position, loader)
            agreed = agreement.after(position.step)
            is_stopping |= agreed.stop
            is_due |= agreed.save or is_stopping or position.samples == 0
            if is_due and accelerator.sync_gradients:
                _save(accelerator, saves, position)
                is_due = False
                if is_stopping:
                    raise SystemExit(STOPPED)
    agreement.close()


def _require_repeatable(loader: Any) -> None:
    sampler = get_sampler(loader)
    if isinstance(sampler, RandomSampler) and not isinstance(sampler, SeedableRandomSampler):
        raise ConfigurationError(
            "the loader shuffles in an order that a resumed run cannot repeat: give "
            "Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))"
        )
    if not hasattr(loader, "total_batch_size"):
        raise ConfigurationError(
            f"loader: {type(loader).__name__} was not prepared: give what accelerator.prepare(...) "
            "has returned"
        )


def _resume(accelerator: Accelerator, saves: JointSaves) -> _Position:
    newest = saves.newest()
    position = _Position()
    if newest:
        with plain_values_only(str(newest)):
            accelerator.load_state(newest)
        position = _Position(**json.loads((Path(newest) / POSITION_FILE).read_text()))
    saves.start(position.step)
    return position


def _rest_of_epoch(accelerator: Accelerator, loader: Any, position: _Position) -> Iterator[Any]:
    """The batches of the epoch from the position on, in the order of that epoch."""
    done = position.samples // int(loader.total_batch_size)
    rest = accelerator.skip_first_batches(loader, done) if done else loader
    for one in (loader, rest):
        one.iteration = position.epoch
    if hasattr(sampler := get_sampler(loader), "set_epoch"):
        sampler.set_epoch(position.epoch)
    if not done:
        yield from rest
        return
    iterator = iter(rest)
    with torch.random.fork_rng():  # a new iterator draws numbers that the run before did not draw
        first = next(iterator)
    yield first
    yield from iterator


def _advance(position: _Position, loader: Any) -> None:
    size = int(loader.total_batch_size)
    position.step += 1
    position.samples += size
    if position.samples >= len(loader) * size:
        position.epoch, position.samples = position.epoch + 1, 0


def _save(accelerator: Accelerator, saves: JointSaves, position: _Position) -> None:
    folder = saves.begin(position.step)
    accelerator.save_state(str(folder))
    if is_rank0():
        (folder / POSITION_FILE).write_text(json.dumps(asdict(position)))
    saves.publish(position.step)
