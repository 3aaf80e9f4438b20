"""A new run waits for the weights that it is given, as for all that lies on a volume."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from regroup_trainer import models
from regroup_trainer.checkpoint import volume_calls
from regroup_trainer.checkpoint.initialize_from import initialize_from
from regroup_trainer.errors import DataError, GenerationOverError, StorageError
from regroup_trainer.protocol.config import ModelConfig
from regroup_trainer.rank.built_in_program import BuiltInProgram
from tests.support.hugging_face import VOCABULARY, llama, write
from tests.support.ranks import generation, train_config
from tests.support.volume import NotedReports, access, be_alone, wait_briefly

DEADLINE = 30.0
AT_ONCE, IN_BETWEEN = 1, 9
"""The file at whose opening the volume goes away: config.json, or that of a weight."""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    be_alone(monkeypatch)
    wait_briefly(monkeypatch)
    monkeypatch.setattr(volume_calls, "SLOW_SECONDS", 0.05)


class Releasing(NotedReports):
    """Lets the volume answer once its problem was reported."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.answers = threading.Event()

    def send(self, report: Any) -> None:
        super().send(report)
        if report.volume is not None:
            self.answers.set()


def empty(config: ModelConfig) -> Any:
    return models.build(config, VOCABULARY).to_empty(device="cpu")


def begin(folder: Path, channel: NotedReports) -> dict[str, torch.Tensor]:
    """The parameters with which a run of one rank begins."""
    model = llama(folder).model_dump()
    config = train_config(model=model)
    record = generation(Path("/job"), 1, config).model_copy(update={"restored_from": "Nothing"})
    state = SimpleNamespace(model=empty(config.model))
    data = SimpleNamespace(classes=VOCABULARY)
    program = BuiltInProgram(config, cast(Any, data))
    program.begin_run(cast(Any, state), access(record, channel))
    return dict(state.model.state_dict())


def let_openings_fail(
    monkeypatch: pytest.MonkeyPatch, folder: Path, first: int, fail: Callable[[], object]
) -> None:
    """From the opening of so many files in `folder` on, `fail` comes before each."""
    plain, count = Path.open, 0

    def open_file(path: Path, *arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += path.parent == folder
        if path.parent == folder and count >= first:
            fail()
        return plain(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", open_file)


def require_given(folder: Path, parameters: dict[str, torch.Tensor]) -> None:
    expected = empty(llama(folder))
    initialize_from(expected, llama(folder), VOCABULARY)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(parameters[name], tensor), name


@pytest.mark.parametrize("first", [AT_ONCE, IN_BETWEEN])
def test_weights_on_a_volume_that_does_not_answer_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: int
) -> None:
    folder, channel = write(tmp_path / "hf"), Releasing()
    let_openings_fail(monkeypatch, folder, first, lambda: channel.answers.wait(DEADLINE))
    require_given(folder, begin(folder, channel))
    assert channel.problems[0].error == "the volume does not answer"
    assert channel.problems[0].path == str(folder)
    assert "No state is in memory: nothing is lost" in channel.problems[0].at_risk


@pytest.mark.parametrize("first", [AT_ONCE, IN_BETWEEN])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_weights_on_a_volume_that_gives_errors_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: int, code: int
) -> None:
    folder, channel = write(tmp_path / "hf"), Releasing()

    def refuse() -> None:
        if not channel.answers.is_set():
            raise OSError(code, os.strerror(code))

    let_openings_fail(monkeypatch, folder, first, refuse)
    require_given(folder, begin(folder, channel))
    assert os.strerror(code) in channel.problems[0].error
    assert str(folder) in channel.problems[0].error


def test_a_rank_that_waits_for_weights_leaves_when_its_generation_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, channel = write(tmp_path / "hf"), NotedReports()
    may_answer = threading.Event()

    def hang() -> None:
        channel.over = True
        may_answer.wait(DEADLINE)

    let_openings_fail(monkeypatch, folder, AT_ONCE, hang)
    with pytest.raises(GenerationOverError):
        begin(folder, channel)
    may_answer.set()


def test_what_does_not_pass_ends_the_rank_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    folder = write(tmp_path / "hf")
    let_openings_fail(monkeypatch, folder, AT_ONCE, refuse)
    with pytest.raises(DataError, match=r"config\.json cannot be read \(.*Permission denied"):
        begin(folder, NotedReports())


def test_a_program_without_an_agent_ends_with_the_error_of_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    folder = write(tmp_path / "hf")
    let_openings_fail(monkeypatch, folder, AT_ONCE, refuse)
    with pytest.raises(StorageError, match=rf"{folder} cannot be used: {folder}/config\.json: In"):
        begin(folder, NotedReports(lasting=False))
