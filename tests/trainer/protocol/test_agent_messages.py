"""What agents and ranks send: it arrives equal, and what is wrong is refused by name."""

from __future__ import annotations

import functools
import json
import operator
import re

import pytest
from pydantic import BaseModel, ValidationError

from regroup_trainer.protocol.agent_messages import (
    HeldSnapshot,
    HeldSnapshots,
    RankExit,
    Reports,
    Stack,
    agent_message,
)
from regroup_trainer.protocol.generation import RecordWanted, SnapshotNumber
from regroup_trainer.protocol.message import describe_invalid, quote
from regroup_trainer.protocol.rank_messages import (
    Finished,
    Progress,
    Restored,
    SnapshotTaken,
    rank_report,
)
from tests.support.generations import make_generation, make_hello

RECORD = make_generation(2, 7)
NUMBER = RECORD.number


@pytest.mark.parametrize(
    "message",
    [
        make_hello(record=RECORD, highest=NUMBER).shortened(),
        Reports(
            reports=(
                Progress(generation=NUMBER, rank=0, step=3, time=1.5, loss=None),
                RankExit(generation=NUMBER, rank=1, exit_code=137, signal=9, cause="oom"),
                Finished(generation=NUMBER, rank=1, step=3, reason="leave"),
            )
        ),
    ],
)
def test_an_agents_messages_survive_the_wire(message: BaseModel) -> None:
    assert agent_message.validate_json(message.model_dump_json()) == message


def test_a_hello_names_its_generation_instead_of_its_members() -> None:
    hello = make_hello(record=RECORD, highest=NUMBER)
    text = hello.shortened().model_dump_json()
    assert "uid-1" not in text
    assert hello.shortened().generation == NUMBER
    assert hello.shortened().with_record(RECORD) == hello
    assert make_hello().shortened().generation is None


def test_what_only_an_agent_needs_of_a_step_is_not_sent_to_the_coordinator() -> None:
    step = Progress(generation=NUMBER, rank=0, step=3, time=1.5, seconds={"step": 2.0})
    measured = {"collective_seconds": {"commit": 1.0}, "memory_bytes": {"gpu": 10**9}}
    assert step.model_copy(update=measured).for_coordinator() == step


def test_a_shortened_stack_shows_a_coordinator_the_same_in_a_few_bytes() -> None:
    main = 'Current thread 0x2 (most recent call first):\n  File "/app/a.py", line 12 in read_all\n'
    other = 'Thread 0x1 (most recent call first):\n  File "/lib/b.py", line 3 in wait\n'
    for text in (main + other * 200, f"{other * 200}\n{main}", f"{other}\n{other}", "", "no frame"):
        stack = Stack(generation=NUMBER, rank=3, text=text)
        assert stack.shortened().innermost() == stack.innermost()
        assert len(stack.shortened().text) < 60
    long = Stack(generation=NUMBER, rank=3, text=main.replace("a.py", "a" * 9000))
    assert len(long.shortened().text) < 600
    assert long.innermost() == long.shortened().innermost()


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValidationError, match="kind"):
        agent_message.validate_json('{"kind": "gossip"}')


def test_an_unknown_field_is_refused() -> None:
    text = (
        Restored(generation=NUMBER, rank=0, step=0).model_dump_json().replace("}", ', "stepp": 1}')
    )
    with pytest.raises(ValidationError, match="stepp"):
        rank_report.validate_json(text)


@pytest.mark.parametrize(
    ("field", "number"),
    [
        ("loss", "1e999"),
        ("gradient_norm", "NaN"),
        ("epoch", "-Infinity"),
        ("tokens", str(2**70)),
        ("rank", str(-(2**70))),
        ("seconds", '{"step": 1e999}'),
        ("memory_bytes", f'{{"gpu": {2**70}}}'),
    ],
)
def test_a_number_that_is_not_finite_or_has_too_many_bits_is_refused_by_name(
    field: str, number: str
) -> None:
    fields = json.loads(Progress(generation=NUMBER, rank=0, step=3, time=1.5).model_dump_json())
    text = json.dumps({**fields, field: "NUMBER"}).replace('"NUMBER"', number)
    with pytest.raises(ValidationError, match=f"{field}: .* (finite number|63 bits)"):
        rank_report.validate_json(text)


HELD = HeldSnapshot(number=SnapshotNumber(40, NUMBER, 3), shards=(0, 2))
TAKEN = SnapshotTaken(generation=NUMBER, rank=0, number=HELD.number, shard=0, slot=0, files={})
REPORTS = Reports(reports=(Restored(generation=NUMBER, rank=0, step=0),))
TOO_MANY_BITS = [2**63, 2**70, -1, -(2**70)]


@pytest.mark.parametrize("number", TOO_MANY_BITS)
@pytest.mark.parametrize(
    ("message", "path"),
    [
        (make_hello(highest=NUMBER), "highest.0"),
        (make_hello(highest=NUMBER), "highest.1"),
        (make_hello(snapshots=(HELD,)), "snapshots.0.number.0"),
        (make_hello(snapshots=(HELD,)), "snapshots.0.number.1.1"),
        (make_hello(snapshots=(HELD,)), "snapshots.0.number.2"),
        (make_hello(snapshots=(HELD,)), "snapshots.0.shards.1"),
        (HeldSnapshots(snapshots=(HELD,)), "snapshots.0.shards.0"),
        (REPORTS, "reports.0.generation.0"),
        (TAKEN, "number.0"),
        (TAKEN, "generation.1"),
        (RecordWanted(number=NUMBER), "number.1"),
    ],
)
def test_a_number_in_a_list_that_has_too_many_bits_or_is_negative_is_refused_by_name(
    message: BaseModel, path: str, number: int
) -> None:
    document = json.loads(message.model_dump_json())
    *places, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    functools.reduce(operator.getitem, places, document)[last] = number
    with pytest.raises(ValidationError) as refused:
        type(message).model_validate_json(json.dumps(document))
    text = describe_invalid(refused.value)
    assert re.search(rf"{re.escape(path)}\b.*, got {quote(number)}", text.replace(".restored", ""))


@pytest.mark.parametrize(("shards", "held"), [(1, (5,)), (3, (0, 1, 3)), (0, ())])
def test_a_shard_that_a_snapshot_does_not_have_is_refused(
    shards: int, held: tuple[int, ...]
) -> None:
    number = SnapshotNumber(40, NUMBER, shards)
    with pytest.raises(ValidationError, match=r"shard|number\.2"):
        HeldSnapshot(number=number, shards=held)
