"""An operator understands the pods that each release since 0.1 has made, and they understand it:
this also holds for releases that are still to come.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from regroup_trainer.protocol.accelerate_settings import AccelerateLaunch
from regroup_trainer.protocol.config import PRESETS, ModelConfig, TrainConfig
from regroup_trainer.protocol.desired import (
    CoordinatorAddress,
    CoordinatorContact,
    Desired,
    LastKnown,
    Lost,
)
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.protocol.ledger import FailedStarts, Ledger
from regroup_trainer.protocol.message import PROTOCOL_VERSION, Message
from tests.support.message_fields import fields_of, unknown
from tests.support.version_one_records import VERSIONS, recorded

MESSAGES = (Desired, Lost, CoordinatorAddress, CoordinatorContact, CoordinatorStatus)
FIELDS: dict[int, Any] = {
    1: recorded("desired_fields"),
    2: recorded("fields", "version_two")["Desired"],
    3: recorded("fields", "version_three")["Desired"],
}
"""Of Desired."""
ANSWERS = {version: recorded("status", folder) for version, folder in VERSIONS.items()}
"""Of coordinators."""
NEWEST: dict[str, Any] = recorded("fields", "version_three")
"""What PROTOCOL_VERSION was recorded with."""
RELEASED = range(1, PROTOCOL_VERSION + 1)


def whole_desired(protocol: int) -> Desired:
    """All fields are filled, but those of a model that each knows whose job could have it."""
    size = PRESETS["llama"]["1b"]
    if protocol < 3:
        size = size.model_copy(update={"rotary_scaling": None})
    return Desired(
        revision=3,
        namespace="default",
        job="gpt",
        replicas=3,
        min_replicas=2,
        max_replicas=4,
        train=TrainConfig(model=ModelConfig(name="llama", dimensions=size)),
        accelerate=AccelerateLaunch(config_file="a.yaml", settings={"a": 1}, counts={"b": 2}),
        directory="/regroup/volume/default/gpt-0000aaaa",
        seed=Ledger(seconds={"step": 9.0}, gpu_seconds={"lost": 9.0}, restarts={"hang": 1}),
        last_known=LastKnown(step=7, time=1.0, world_size=3),
        failed_starts=FailedStarts(error="boom", tries=2, machines=("n1",), since=1.0),
    )


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_has_the_fields_that_its_protocol_was_recorded_with(
    message: type[Message],
) -> None:
    """Peers of the same protocol refuse what is new. Once a release with PROTOCOL_VERSION is out,
    raise it, record the new one beside the old one, and send the old one what it knows. Before
    that, change the record.
    """
    assert fields_of(message) == NEWEST[message.__name__]


def test_each_protocol_that_a_release_has_spoken_is_recorded() -> None:
    assert set(FIELDS) == set(ANSWERS) == set(RELEASED)
    assert NEWEST["Desired"] == FIELDS[PROTOCOL_VERSION]


@pytest.mark.parametrize("protocol", RELEASED)
def test_a_coordinator_is_sent_no_field_that_its_release_would_refuse(protocol: int) -> None:
    sent = json.loads(whole_desired(protocol).to_json(protocol))
    assert unknown(sent, FIELDS[protocol]) == []


def test_a_coordinator_of_today_is_sent_each_field() -> None:
    sent = json.loads(whole_desired(PROTOCOL_VERSION).to_json(PROTOCOL_VERSION))
    assert unknown(NEWEST["Desired"], sent) == []


@pytest.mark.parametrize("protocol", RELEASED)
def test_the_answer_of_a_coordinator_of_each_release_is_read(protocol: int) -> None:
    status = CoordinatorStatus.read(ANSWERS[protocol])
    assert (status.protocol, str(status.generation)) == (protocol, "2.4")
    assert status.outcome is not None
    assert status.outcome.exit_code == 7
    restored = [recovery.restored_from for recovery in status.recoveries]
    assert restored == ["Peers", "Snapshot", "Checkpoint", "Nothing"]


def test_all_that_a_coordinator_of_0_2_0_answers_is_kept_as_it_sent_it() -> None:
    """Nothing of it was renamed since: where something is, the bridge has to translate."""
    read = json.loads(CoordinatorStatus.read(ANSWERS[2]).model_dump_json())
    assert unknown(ANSWERS[2], fields_of(CoordinatorStatus)) == []
    assert what_is_also_in(ANSWERS[2], read) == ANSWERS[2]


def what_is_also_in(answer: Any, read: Any) -> Any:
    """`read` without what `answer` does not hold."""
    if isinstance(answer, dict) and isinstance(read, dict):
        return {name: what_is_also_in(answer[name], read[name]) for name in answer if name in read}
    if isinstance(answer, list) and isinstance(read, list) and len(answer) == len(read):
        return [what_is_also_in(*pair) for pair in zip(answer, read, strict=True)]
    return read


def test_the_recorded_answer_of_today_fills_each_field() -> None:
    answer = ANSWERS[PROTOCOL_VERSION]
    assert None not in [*answer.values(), *answer["progress"].values()]
    assert json.loads(CoordinatorStatus.read(answer).model_dump_json()) == answer
