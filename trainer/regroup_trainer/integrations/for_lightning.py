"""Lightning's Trainer in a job: ranks from the environment, checkpoints that are whole or ignored,
and a save before it has to stop.

```python
recovery = LightningRecovery(every_steps=50)
trainer = L.Trainer(max_epochs=4, callbacks=[recovery], **placement())
trainer.fit(model, loader, ckpt_path=recovery.newest())
```

Lightning saves and loads. A run that goes on in the middle of an epoch reads the rest of that
epoch's samples. Lightning 2.6 would begin the epoch anew, or, with a loader that has a state, go on
in the order of the first epoch. Under plain torchrun and without a launcher it does the same.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import RandomSampler, Sampler

from regroup_trainer.integrations.joint_saves import JointSaves
from regroup_trainer.integrations.required_library import require
from regroup_trainer.integrations.stop_agreement import (
    STOPPED,
    StopAgreement,
    has_peers,
    is_rank0,
    require_joined,
)

LIBRARY, OLDEST = "lightning", "2.5"
try:
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    require(LIBRARY, OLDEST)
    raise

STATE_FILE = "lightning.ckpt"


class JobEnvironment(TorchElasticEnvironment):
    """The ranks of the job, as their environment variables say. Nothing is started."""

    @staticmethod
    def detect() -> bool:
        """Whether a launcher has started this process as a rank."""
        return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def placement() -> dict[str, Any]:
    """Arguments of Trainer that say where its ranks are: one device a rank, as many as the job has.
    Empty without a launcher.
    """
    if not JobEnvironment.detect():
        return {}
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return {
        "plugins": [JobEnvironment()],
        "devices": here,
        "num_nodes": max(1, int(os.environ["WORLD_SIZE"]) // here),
    }


class LightningRecovery(Callback):
    """Saves every so many steps or seconds, and at the ends of epochs when neither is given. Saves
    and ends upon SIGTERM.

    `keep_last` checkpoints stay. Raises ConfigurationError for what would lose checkpoints.
    """

    def __init__(
        self,
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep_last: int = 3,
    ) -> None:
        require(LIBRARY, OLDEST)
        self._saves = JointSaves(keep_last)
        self._every = (every_steps, every_seconds)
        self._agreement: StopAgreement | None = None
        self._is_stopping = self._may_save_inside = False
        self._from = self._saves.folders.newest()

    def newest(self) -> str | None:
        """The newest whole checkpoint when this was made; None: there is none."""
        return None if self._from is None else str(self._from / STATE_FILE)

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Delete what interrupted saves have left, and listen to SIGTERM.

        Lightning's own handler makes a collective, and ranks get the signal at different places.
        """
        _require_same_start(trainer.global_step)
        require_joined("the Trainer needs **placement()")
        self._saves.start(trainer.global_step)
        loaders = (
            trainer.fit_loop._combined_loader.flattened if trainer.fit_loop._combined_loader else []
        )
        self._may_save_inside = not any(_draws_its_order(loader) for loader in loaders)
        if not self._may_save_inside and is_rank0():
            print(
                "checkpoints are saved at the ends of epochs only, since one process shuffles in "
                "an order that cannot be repeated: give the loader a DistributedSampler"
            )
        _seek(trainer, loaders)
        _restore_randomness(self._from)
        self._agreement = StopAgreement(*self._every, trainer.global_step)

    def on_load_checkpoint(
        self, _trainer: Trainer, _module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Leave out the positions of loaders: `_seek` finds the place."""
        checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Agree with the other ranks whether to save and to stop here."""
        assert self._agreement is not None
        agreed = self._agreement.after(trainer.global_step)
        self._is_stopping |= agreed.stop
        is_last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if (agreed.save or agreed.stop) and self._may_save_inside and not is_last:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save."""
        self._save(trainer)

    def on_train_end(self, *_: Any) -> None:
        """Stop listening."""
        if self._agreement is not None:
            self._agreement.close()

    def _save(self, trainer: Trainer) -> None:
        step = trainer.global_step
        if not self._saves.has(step):
            folder = self._saves.begin(step)
            trainer.save_checkpoint(folder / STATE_FILE)
            _save_randomness(folder)
            self._saves.publish(step)
        if self._is_stopping:
            raise SystemExit(STOPPED)


class _Rest(Sampler[int]):
    """What a sampler gives, without the first samples of its next pass."""

    def __init__(self, sampler: Sampler[int], done: int) -> None:
        self._sampler, self._done = sampler, done

    def __iter__(self) -> Iterator[int]:
        done, self._done = self._done, 0
        return islice(iter(self._sampler), done, None)

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]  # a sampler of a map-style data set

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the sampler, if it has one."""
        _set_epoch(self._sampler, epoch)


def _set_epoch(sampler: object, epoch: int) -> None:
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)


def _draws_its_order(loader: Any) -> bool:
    """Whether a pass draws its order from a generator that a resumed run does not have."""
    return isinstance(getattr(loader, "sampler", None), RandomSampler)


def _seek(trainer: Trainer, loaders: list[Any]) -> None:
    """Have the loaders go on after the last batch of the checkpoint.

    Lightning has made its iterator already, before it set the epoch of the samplers.
    """
    loop, fetcher = trainer.fit_loop, trainer.fit_loop._data_fetcher
    progress: Any = loop.epoch_progress.current
    epoch, done = progress.processed, loop.epoch_loop.batch_progress.current.ready
    if fetcher is None or not (epoch or done):
        return
    done = done if done < loop.max_batches else 0
    samplers = [
        getattr(getattr(loader, "batch_sampler", None), "sampler", None) for loader in loaders
    ]
    for loader, sampler in zip(loaders, samplers, strict=True):
        _set_epoch(sampler, epoch)
        if sampler is not None and done:
            loader.batch_sampler.sampler = _Rest(sampler, done * loader.batch_sampler.batch_size)
    iter(fetcher)
    if None in samplers:  # a stream: read what was read before
        for _ in range(done):
            next(fetcher.combined_loader)


def _require_same_start(step: int) -> None:
    """Raises RuntimeError where a rank has not seen the newest checkpoint: another start may."""
    if not has_peers():
        return
    steps: list[int | None] = [None] * dist.get_world_size()
    dist.all_gather_object(steps, step)
    if len(set(steps)) > 1:
        raise RuntimeError(
            f"the ranks would start after steps {steps}, since they see different checkpoints: "
            "their volume must show a file to all workers as soon as it is written"
        )


def _randomness_file(folder: Path) -> Path:
    return folder / f"randomness-{dist.get_rank() if has_peers() else 0}.pt"


def _save_randomness(folder: Path) -> None:
    """Save this rank's generators, which Lightning does not."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    torch.save(states, _randomness_file(folder))


def _restore_randomness(folder: Path | None) -> None:
    if folder is None or not (file := _randomness_file(folder)).is_file():
        return  # a new run, or a rank that the run before did not have
    states = torch.load(file, weights_only=True)
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
