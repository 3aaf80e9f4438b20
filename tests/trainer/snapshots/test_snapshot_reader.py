"""Fetching the shards of a snapshot: what a reader says when it cannot."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from regroup_trainer.protocol.environment import AgentEnvironment
from regroup_trainer.protocol.generation import GenerationNumber, SnapshotNumber, SnapshotSource
from regroup_trainer.snapshots.places import TENSORS
from regroup_trainer.snapshots.snapshot_reader import Shards, SnapshotProblem


def test_an_agent_that_cannot_be_reached_is_named_with_the_cause_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("t0ken")
    monkeypatch.setenv(AgentEnvironment.variable("token_file"), str(tmp_path / "token"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"127.0.0.1:{server.getsockname()[1]}"
    source = SnapshotSource(number=SnapshotNumber(3, GenerationNumber(1, 1), 1), places=(nobody,))
    with pytest.raises(SnapshotProblem) as raised:
        Shards(tmp_path, source).read(0, TENSORS)
    assert str(raised.value) == f"shard 0 cannot be fetched from {nobody}: Connection refused"
