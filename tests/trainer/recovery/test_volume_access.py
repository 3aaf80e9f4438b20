"""A rank that enters a generation waits for its volume, and keeps its state meanwhile."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regroup_trainer.checkpoint import lineage, volume_calls
from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.errors import CheckpointError, DataError, GenerationOverError, StorageError
from regroup_trainer.recovery.volume_access import VolumeAccess
from tests.support import checkpoints
from tests.support.disks import mounted, remount
from tests.support.ranks import generation, train_config
from tests.support.volume import NotedReports, access, be_alone, wait_briefly
from tests.support.waiting import wait_until

DEADLINE = 30.0
ENDLESS = 1_000_000


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    be_alone(monkeypatch)
    wait_briefly(monkeypatch)


def make_access(channel: NotedReports | None = None, source: str = "Peers") -> VolumeAccess:
    record = generation(Path("/job"), 1, train_config()).model_copy(
        update={"restored_from": source}
    )
    return access(record, channel)


def refusing(number: int, times: int) -> Callable[[], str]:
    """An action that the volume refuses so often, with this error."""
    left = [number] * times

    def act() -> str:
        if left:
            raise OSError(left.pop(), "refused", "/job/lineage")
        return "done"

    return act


@pytest.mark.parametrize("call", ["on_rank0", "on_every_rank"])
def test_what_the_volume_refuses_for_a_while_is_tried_again_and_reported(call: str) -> None:
    channel, refuse = NotedReports(), refusing(errno.ENOSPC, ENDLESS)

    def act() -> str:
        return "done" if channel.problems else refuse()

    assert getattr(make_access(channel), call)(act) == "done"
    assert channel.problems[0].error == "/job/lineage: refused"
    assert "stays in the memory" in channel.problems[0].at_risk


@pytest.mark.parametrize("source", ["Peers", "Snapshot"])
def test_no_error_of_the_volume_ends_a_rank_while_a_state_is_in_memory(source: str) -> None:
    assert make_access(source=source).on_rank0(refusing(errno.EACCES, 3)) == "done"


@pytest.mark.parametrize("source", ["Checkpoint", "Nothing"])
def test_without_a_state_in_memory_only_errors_that_pass_are_waited_for(source: str) -> None:
    assert make_access(source=source).on_rank0(refusing(errno.EROFS, 3)) == "done"
    with pytest.raises(StorageError, match="directory /job cannot be used: /job/lineage: refused"):
        make_access(source=source).on_rank0(refusing(errno.EACCES, 1))


def test_other_errors_are_raised_at_once() -> None:
    def fail() -> Any:
        raise CheckpointError("no checkpoint is left")

    with pytest.raises(CheckpointError):
        make_access().on_rank0(fail)


def test_the_wait_ends_with_the_generation_though_the_volume_does_not_answer() -> None:
    channel, may_answer = NotedReports(), threading.Event()

    def hang() -> bool:
        channel.over = True
        return may_answer.wait(DEADLINE)

    with pytest.raises(GenerationOverError):
        make_access(channel).on_rank0(hang)
    may_answer.set()


def test_a_call_that_hangs_is_reported_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_calls, "SLOW_SECONDS", 0.01)
    may_answer, calls = threading.Event(), list[int]()

    class Releasing(NotedReports):
        def send(self, report: Any) -> None:
            super().send(report)
            if report.volume is not None:
                may_answer.set()

    def hang() -> str:
        calls.append(1)
        assert may_answer.wait(DEADLINE)
        return "done"

    channel = Releasing()
    assert make_access(channel).on_rank0(hang) == "done"
    assert channel.problems[0].error == "the volume does not answer"
    assert calls == [1]


def test_a_wait_is_reported_from_its_beginning_though_nothing_is_wrong_yet() -> None:
    """The deadline of a first step may be two seconds: without a report it looks like a hang."""
    channel = NotedReports()
    make_access(channel).on_rank0(
        lambda: wait_until("a report", lambda: bool(channel.reports), DEADLINE)
    )
    assert channel.problems == []


def data_access(channel: NotedReports, *paths: str) -> VolumeAccess:
    """The access of a rank whose training data is there."""
    record = generation(Path("/job"), 2, train_config(data={"paths": paths}))
    return access(record.model_copy(update={"restored_from": "Peers"}), channel)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_training_data_that_cannot_be_opened_is_waited_for_and_reported(code: int) -> None:
    channel, refuse = NotedReports(), refusing(code, ENDLESS)

    def load() -> str:
        return "data" if channel.problems else refuse()

    assert data_access(channel, "/data", "/more").open_data(load) == "data"
    assert channel.problems[0].path == "/data, /more"
    assert channel.problems[0].error == "/job/lineage: refused"
    assert "stays in the memory of the ranks" in channel.problems[0].at_risk


def test_training_data_that_is_wrong_ends_the_rank_at_once() -> None:
    def load() -> str:
        raise DataError("data.paths: /data does not exist on this worker")

    with pytest.raises(DataError, match="does not exist"):
        data_access(NotedReports()).open_data(load)


def test_a_rank_whose_training_data_is_unresponsive_leaves_when_its_generation_is_over() -> None:
    channel, may_answer = NotedReports(), threading.Event()

    def hang() -> bool:
        channel.over = True
        return may_answer.wait(DEADLINE)

    with pytest.raises(GenerationOverError):
        data_access(channel).open_data(hang)
    may_answer.set()


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")
def test_a_generation_begins_when_its_read_only_volume_is_writable_again(tmp_path: Path) -> None:
    class Repairing(NotedReports):
        def send(self, report: Any) -> None:
            super().send(report)
            if report.volume is not None:
                remount(disk, "rw")

    channel = Repairing()
    with mounted(tmp_path / "disk", "1m") as disk:
        layout = Layout(disk)
        layout.lineage.mkdir()
        remount(disk, "ro")
        number = make_access(channel).on_rank0(lambda: checkpoints.begin(layout, 1))
        assert set(lineage.read(layout)) == {number}
    assert "Read-only file system" in channel.problems[0].error


def test_a_program_without_an_agent_ends_with_the_error_at_once() -> None:
    """Its user reads it; nobody would see the reports of a wait."""
    channel = NotedReports(lasting=False)
    with pytest.raises(StorageError, match="cannot be used: /job/lineage: refused"):
        make_access(channel).on_rank0(refusing(errno.ENOSPC, 1))
    assert channel.problems == []
