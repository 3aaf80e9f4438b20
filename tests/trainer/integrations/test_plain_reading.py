"""What a library reads is data: torch's own readers, on files that somebody has replaced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from regroup_trainer.errors import CheckpointError
from regroup_trainer.integrations.plain_reading import plain_values_only
from regroup_trainer.protocol.environment import TRUST_CHECKPOINTS
from tests.support import hostile_pickle

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
SWITCHES = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")


def sharded(folder: Path) -> Path:
    """A sharded state as FSDP saves it: nested, with tensors and other values."""
    state = {"model": {"a": torch.arange(6.0).reshape(2, 3)}, "groups": [{"rate": 0.5}]}
    save(state, storage_writer=FileSystemWriter(folder), no_dist=True)
    return folder


def loaded(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = {"model": {"a": torch.zeros(2, 3)}, "groups": [{"rate": 0.0}]}
    load(state, storage_reader=FileSystemReader(folder), no_dist=True)
    return state


def test_a_sharded_state_is_read(tmp_path: Path) -> None:
    with plain_values_only("it"):
        state = loaded(sharded(tmp_path))
    assert state["groups"] == [{"rate": 0.5}]
    assert torch.equal(state["model"]["a"], torch.arange(6.0).reshape(2, 3))


def test_the_description_of_a_sharded_state_runs_nothing(tmp_path: Path) -> None:
    (sharded(tmp_path) / ".metadata").write_bytes(hostile_pickle.pickled(tmp_path / "made"))
    with plain_values_only("it"), pytest.raises(CheckpointException, match=r"names posix\.mkdir"):
        loaded(tmp_path)
    assert not (tmp_path / "made").exists()


def test_an_object_of_a_sharded_state_runs_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    save(
        {"rate": hostile_pickle.Touch(tmp_path / "made")},
        storage_writer=FileSystemWriter(folder),
        no_dist=True,
    )
    reader = FileSystemReader(folder)
    with plain_values_only("it"), pytest.raises(CheckpointException, match=r"posix\.mkdir"):
        load({"rate": 0.0}, storage_reader=reader, no_dist=True)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("former", [None, "0"])
def test_torch_reads_as_before_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, former: str | None
) -> None:
    for name in SWITCHES:
        monkeypatch.setenv(name, former) if former else monkeypatch.delenv(name, raising=False)
    (tmp_path / "it").write_bytes(hostile_pickle.saved(tmp_path / "made"))
    with pytest.raises(CheckpointError, match="it holds more"), plain_values_only("it"):
        torch.load(tmp_path / "it", weights_only=False)
    assert [os.environ.get(name) for name in SWITCHES] == [former, former]
    torch.load(tmp_path / "it", weights_only=False)
    assert (tmp_path / "made").exists()


def test_a_users_own_switch_of_torch_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    (tmp_path / "it").write_bytes(hostile_pickle.saved(tmp_path / "made"))
    with pytest.raises(CheckpointError, match="it holds more"), plain_values_only("it"):
        torch.load(tmp_path / "it")
    assert not (tmp_path / "made").exists()


def test_who_trusts_the_volume_reads_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRUST_CHECKPOINTS, "1")
    (tmp_path / "it").write_bytes(hostile_pickle.saved(tmp_path / "made"))
    with plain_values_only("it"):
        torch.load(tmp_path / "it", weights_only=False)
    assert (tmp_path / "made").exists()
