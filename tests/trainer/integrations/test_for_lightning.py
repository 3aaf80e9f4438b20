"""Where Lightning's ranks are, as the environment says, and its saves in one process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from regroup_trainer.integrations.for_lightning import (
    STATE_FILE,
    JobEnvironment,
    LightningRecovery,
    placement,
)
from regroup_trainer.integrations.stop_agreement import STOPPED
from regroup_trainer.integrations.whole_folders import LIST_FILE


def test_the_trainer_has_as_many_devices_and_nodes_as_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**ranks, "GROUP_RANK": "2", "MASTER_ADDR": "h", "MASTER_PORT": "7"}.items():
        monkeypatch.setenv(name, value)
    found = placement()
    (environment,) = found.pop("plugins")
    assert found == {"devices": 2, "num_nodes": 3}
    assert isinstance(environment, JobEnvironment)
    assert environment.creates_processes_externally
    assert (environment.main_address, environment.main_port) == ("h", 7)
    assert (environment.global_rank(), environment.node_rank()) == (5, 2)


def test_without_a_launcher_lightning_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert placement() == {}


class Line(LightningModule):
    """One weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return (self.weight * batch[0]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(recovery: LightningRecovery, accumulate: int, stop_at: int | None = None) -> None:
    """An epoch of 16 batches, of which SIGTERM may come in one."""
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        accumulate_grad_batches=accumulate,
        callbacks=[Stop(stop_at), recovery],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(Line(), DataLoader(TensorDataset(torch.ones(16))), ckpt_path=recovery.newest())


class Stop(Callback):
    """Sends SIGTERM in a batch."""

    def __init__(self, batch: int | None) -> None:
        self._batch = batch

    def on_train_batch_end(self, *arguments: Any) -> None:
        if arguments[-1] == self._batch:
            os.kill(os.getpid(), signal.SIGTERM)


def published(folder: Path) -> list[tuple[int, str, int]]:
    """Number, name and batches of each whole checkpoint, in the order of publication."""
    found = []
    for path in (folder / "saves").iterdir():
        state = torch.load(path / STATE_FILE, weights_only=False)
        progress = state["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
        number = json.loads((path / LIST_FILE).read_text())["number"]
        found.append((number, path.name, progress["ready"]))
    return sorted(found)


@pytest.mark.filterwarnings("ignore")
def test_a_step_of_several_batches_is_saved_once_and_when_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROUP_DIRECTORY", str(tmp_path))
    train(LightningRecovery(every_steps=2, keep_last=9), accumulate=4)
    assert published(tmp_path) == [(1, "checkpoint-2", 8), (2, "checkpoint-4", 16)]


@pytest.mark.filterwarnings("ignore")
def test_a_stop_waits_until_the_step_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROUP_DIRECTORY", str(tmp_path))
    with pytest.raises(SystemExit, match=str(STOPPED)):
        train(LightningRecovery(), accumulate=4, stop_at=1)
    assert published(tmp_path) == [(1, "checkpoint-1", 4)]
    train(LightningRecovery(), accumulate=4)
    assert published(tmp_path) == [(1, "checkpoint-1", 4), (2, "checkpoint-4", 16)]
