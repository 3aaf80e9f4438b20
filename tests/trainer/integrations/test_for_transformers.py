"""The Trainer's checkpoints in one process: each step once, and what would lose them is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.integrations.for_transformers import TransformersRecovery, saves_directory
from regroup_trainer.integrations.whole_folders import LIST_FILE, WholeFolders, is_whole


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_dir": "elsewhere"}, "elsewhere is not where TransformersRecovery looks"),
        ({"save_only_model": True}, "save_only_model: true leaves out what a resumed run needs"),
        ({"save_total_limit": 2}, "save_total_limit: 2 deletes a checkpoint before the next one"),
    ],
)
def test_arguments_that_lose_checkpoints_are_refused(
    changes: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROUP_DIRECTORY", str(tmp_path))
    arguments = TrainingArguments(
        **{"output_dir": str(saves_directory()), "use_cpu": True, "report_to": [], **changes}
    )
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        TransformersRecovery().on_train_begin(arguments, TrainerState(), TrainerControl())


class Line(torch.nn.Module):
    """One weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.weight * x - labels).pow(2).sum()}


def train(recovery: TransformersRecovery, **changes: Any) -> None:
    """Two epochs of three steps."""
    settings: dict[str, Any] = {
        "output_dir": str(saves_directory()),
        "num_train_epochs": 2,
        "per_device_train_batch_size": 1,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        **changes,
    }
    samples: Any = [{"x": torch.ones(1), "labels": torch.zeros(1)}] * 3
    trainer = Trainer(
        Line(),
        TrainingArguments(**settings),
        train_dataset=samples,
        eval_dataset=samples,
        callbacks=[recovery],
    )
    trainer.train(resume_from_checkpoint=recovery.newest())


def published(folder: Path) -> list[tuple[int, str]]:
    """Number and name of each whole checkpoint, in the order of publication."""
    return sorted(
        (json.loads((path / LIST_FILE).read_text())["number"], path.name)
        for path in (folder / "saves").iterdir()
        if is_whole(path)
    )


def test_the_end_of_a_step_and_of_its_epoch_are_one_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROUP_DIRECTORY", str(tmp_path))
    train(TransformersRecovery(every_seconds=1e-9, keep_last=9), save_strategy="epoch")
    assert published(tmp_path) == [
        (number, f"checkpoint-{number + 1}") for number in range(1, 6)
    ]  # a save by time is due after the second step at first


def test_a_save_at_the_end_of_an_epoch_finds_no_files_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROUP_DIRECTORY", str(tmp_path))
    train(TransformersRecovery(), save_strategy="epoch")
    recovery = TransformersRecovery()
    monkeypatch.setattr(recovery, "newest", lambda: None)
    (tmp_path / "saves/checkpoint-3/rng_state_7.pth").touch()
    saves = WholeFolders(tmp_path / "saves")
    saves.publish(saves.of_step(3))
    train(recovery, save_strategy="epoch")
    assert published(tmp_path) == [(3, "checkpoint-3"), (4, "checkpoint-6")]
    assert not (tmp_path / "saves/checkpoint-3/rng_state_7.pth").exists()


def test_the_best_model_is_saved_once_whatever_lies_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROUP_DIRECTORY", str(tmp_path))
    stale = tmp_path / "saves/checkpoint-3"
    stale.mkdir(parents=True)
    (stale / "rng_state_7.pth").touch()
    WholeFolders(tmp_path / "saves").publish(stale)
    recovery = TransformersRecovery()
    monkeypatch.setattr(recovery, "newest", lambda: None)
    train(
        recovery,
        save_strategy="best",
        eval_strategy="epoch",
        metric_for_best_model="loss",
    )
    assert published(tmp_path) == [(1, "checkpoint-3"), (2, "checkpoint-6")]
    assert not (stale / "rng_state_7.pth").exists()
