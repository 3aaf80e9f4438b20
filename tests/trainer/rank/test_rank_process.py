"""How the process of a rank ends."""

from __future__ import annotations

import json
from unittest.mock import create_autospec

import pytest

from regroup_trainer.coordinator.formation import make_record
from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.channel import AgentChannel
from regroup_trainer.protocol.generation import Assignment, GenerationNumber
from regroup_trainer.rank import rank_process, trainer
from regroup_trainer.system.log_lines import Subject, begin_rank_log, rank_log, without_stamps
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_hello

PROBLEM = "training.batch is 0: give at least 1"


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_error_that_ends_a_rank_is_a_line_of_the_log_and_the_reason_its_words_alone(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise ConfigurationError(PROBLEM)

    monkeypatch.setattr(trainer, "run", fail)
    number = GenerationNumber(1, 2)
    record = make_record(number, (make_hello(0),), make_desired(), ("Nothing", "test"))
    assignment = Assignment(record=record, rank=0, local_rank=0, channel="")
    begin_rank_log(form).subject = lambda: Subject("team", "gpt", "1.2", rank="3")
    try:
        code = rank_process.run(assignment, create_autospec(AgentChannel, instance=True))
    finally:
        rank_log.handlers[0].setFormatter(None)
    written = capsys.readouterr().err
    assert code == ConfigurationError.exit_code
    assert without_stamps(written) == f"ConfigurationError: {PROBLEM}\n"
    if form == "json":
        assert json.loads(written)["rank"] == "3"
    else:
        assert f" ERROR team/gpt 1.2: ConfigurationError: {PROBLEM}" in written
