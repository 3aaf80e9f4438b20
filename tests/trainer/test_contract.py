"""The seams: what goes over the wire comes back equal, and what is wrong is refused by name."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from regroup_trainer.contract import (
    Begin,
    Decide,
    Decision,
    Exit,
    Finished,
    GenerationNumber,
    Hello,
    Ledger,
    Progress,
    RankExit,
    Refused,
    Restored,
    Welcome,
    agent_message,
    coordinator_message,
    rank_report,
)
from regroup_trainer.coordinator.formation import make_record
from regroup_trainer.environment import AgentEnvironment, CoordinatorEnvironment
from regroup_trainer.job_status import CoordinatorStatus
from tests.trainer.coordinator.simulation import make_desired

NUMBER = GenerationNumber(2, 7)


def make_hello(index: int = 0, **changes: object) -> Hello:
    """An agent's first word."""
    fields: dict[str, object] = {
        "protocol": 1,
        "member": f"uid-{index}",
        "index": index,
        "pod": f"gpt-w{index}-0",
        "node": f"node-{index}",
        "ranks": 1,
        "store": f"10.0.0.{index}:3000",
    }
    return Hello.model_validate({**fields, **changes})


RECORD = make_record(NUMBER, (make_hello(0), make_hello(1, ranks=2)), make_desired(), ("start", "first"))


@pytest.mark.parametrize(
    "message",
    [
        make_hello(record=RECORD, highest=NUMBER),
        Progress(generation=NUMBER, rank=0, step=3, time=1.5, loss=None),
        RankExit(generation=NUMBER, rank=1, exit_code=137, signal=9, cause="oom"),
        Finished(generation=NUMBER, rank=1, step=3, reason="leave"),
    ],
)
def test_an_agents_messages_survive_the_wire(message: Hello) -> None:
    assert agent_message.validate_json(message.model_dump_json()) == message


@pytest.mark.parametrize(
    "message",
    [
        Welcome(term=3),
        Refused(reason="wrong version", final=True),
        Begin(record=RECORD),
        Decide(generation=NUMBER, decision=Decision.LEAVE),
        Exit(code=1, reason="failed"),
    ],
)
def test_a_coordinators_messages_survive_the_wire(message: Begin) -> None:
    assert coordinator_message.validate_json(message.model_dump_json()) == message


def test_an_unknown_kind_and_an_unknown_field_are_refused() -> None:
    with pytest.raises(ValidationError, match="kind"):
        agent_message.validate_json('{"kind": "gossip"}')
    text = Restored(generation=NUMBER, rank=0, step=0).model_dump_json().replace("}", ', "stepp": 1}')
    with pytest.raises(ValidationError, match="stepp"):
        rank_report.validate_json(text)


def test_generation_numbers_compare_by_term_first() -> None:
    assert GenerationNumber(2, 1) > GenerationNumber(1, 99)
    assert GenerationNumber.parse(str(NUMBER)) == NUMBER


def test_ranks_are_numbered_through_the_members() -> None:
    assert [(place.first_rank, place.ranks) for place in RECORD.members] == [(0, 1), (1, 2)]
    assert RECORD.world_size == 3
    assert RECORD.store == "10.0.0.0:3000"


def test_goodput_takes_lost_work_off_and_is_zero_before_any_time() -> None:
    ledger = Ledger(seconds={"step": 8.0, "idle": 2.0}, lost_work_seconds=3.0)
    assert ledger.goodput_ratio == pytest.approx(0.5)
    assert Ledger().goodput_ratio == 0.0


def test_an_environment_survives_its_variables() -> None:
    environment = CoordinatorEnvironment(term=2, node="n", desired=make_desired().model_dump_json())
    assert CoordinatorEnvironment.read(environment.variables()) == environment
    assert environment.first_desired() == make_desired()
    assert AgentEnvironment.variable("member") == "REGROUP_MEMBER"


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(ValidationError, match="coordinator_url"):
        AgentEnvironment.read({})


def test_a_status_survives_the_wire() -> None:
    status = CoordinatorStatus(term=1, sequence=2, revision=3, phase="waiting", message="", generation=NUMBER)
    assert CoordinatorStatus.model_validate_json(status.model_dump_json()) == status
