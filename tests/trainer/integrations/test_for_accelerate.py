"""Batches from where the last whole checkpoint was taken, in one process."""

from __future__ import annotations

import io
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import (  # type: ignore[import-untyped]
    Accelerator,
    DataLoaderConfiguration,
)
from accelerate.state import AcceleratorState, GradientState  # type: ignore[import-untyped]
from torch.utils.data import DataLoader, TensorDataset

from regroup_trainer.errors import CheckpointError, ConfigurationError
from regroup_trainer.integrations.for_accelerate import saved_batches
from regroup_trainer.integrations.whole_folders import LIST_FILE
from regroup_trainer.protocol.environment import TRUST_CHECKPOINTS
from tests.support import hostile_pickle

SAMPLES = TensorDataset(torch.arange(20.0))


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("REGROUP_DIRECTORY", str(tmp_path))
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def prepare(accumulate: int = 1, *, repeatable: bool = True) -> tuple[Accelerator, Any]:
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=accumulate,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=repeatable, data_seed=0),
    )
    return accelerator, accelerator.prepare(DataLoader(SAMPLES, batch_size=2, shuffle=True))


def saved(folder: Path) -> set[str]:
    return {path.name for path in (folder / "saves").iterdir()}


def test_a_run_that_ended_early_goes_on_with_the_batches_that_are_left(tmp_path: Path) -> None:
    accelerator, loader = prepare()
    batches = saved_batches(accelerator, loader, 2, every_steps=4)
    first = [next(batches)[0].tolist() for _ in range(14)]  # 12 of them are in a checkpoint
    del batches
    whole = [batch[0].tolist() for batch in saved_batches(accelerator, loader, 2)]
    assert len(whole) == 20 - 12
    assert whole[0] == first[12]
    assert sorted(x for batch in first[10:12] + whole for x in batch) == list(range(20))


def test_nothing_is_saved_while_gradients_are_accumulated(tmp_path: Path) -> None:
    accelerator, loader = prepare(accumulate=4)
    for _ in saved_batches(accelerator, loader, 1, every_steps=3, keep_last=9):
        with accelerator.accumulate():
            pass
    assert saved(tmp_path) == {"checkpoint-4", "checkpoint-8", "checkpoint-10"}


def test_an_order_that_cannot_be_repeated_is_refused() -> None:
    accelerator, loader = prepare(repeatable=False)
    with pytest.raises(ConfigurationError, match="a resumed run cannot repeat: give Accelerator"):
        next(saved_batches(accelerator, loader, 1))


def test_a_loader_that_was_not_prepared_is_refused() -> None:
    accelerator, _ = prepare()
    with pytest.raises(ConfigurationError, match="DataLoader was not prepared"):
        next(saved_batches(accelerator, DataLoader(SAMPLES), 1))


class Count:
    """What a user registers."""

    steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


def run_with_count(steps: int) -> Count:
    """Train so many batches of one epoch, of which the first four are in a checkpoint."""
    accelerator, loader = prepare()
    count = Count()
    accelerator.register_for_checkpointing(count)
    for _ in itertools.islice(saved_batches(accelerator, loader, 1, every_steps=4), steps):
        count.steps += 1
    return count


def replace_registered(folder: Path, content: bytes) -> None:
    """Write another registered object into the only checkpoint, and make that whole."""
    (checkpoint,) = (folder / "saves").glob("checkpoint-*")
    (checkpoint / "custom_checkpoint_0.pkl").write_bytes(content)
    listed = json.loads((checkpoint / LIST_FILE).read_text())
    listed["sizes"]["custom_checkpoint_0.pkl"] = len(content)
    (checkpoint / LIST_FILE).write_text(json.dumps(listed))


def test_a_registered_object_is_loaded() -> None:
    run_with_count(5)
    assert run_with_count(1).steps == 4 + 1


def test_a_registered_object_runs_nothing_that_the_checkpoint_names(tmp_path: Path) -> None:
    run_with_count(5)
    replace_registered(tmp_path, hostile_pickle.saved(tmp_path / "made"))
    with pytest.raises(CheckpointError, match=f"checkpoint-4 holds more .*{TRUST_CHECKPOINTS}=1"):
        run_with_count(1)
    assert not (tmp_path / "made").exists()


def test_a_registered_object_of_another_kind_is_loaded_by_who_trusts_the_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with_count(5)
    written = io.BytesIO()
    torch.save(defaultdict(int, steps=7), written)
    replace_registered(tmp_path, written.getvalue())
    monkeypatch.setenv(TRUST_CHECKPOINTS, "1")
    assert run_with_count(1).steps == 7 + 1
