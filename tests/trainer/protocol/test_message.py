"""How texts for users quote what somebody wrote, and name what is wrong with a message."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from regroup_trainer.protocol.agent_messages import ShortHello
from regroup_trainer.protocol.coordinator_messages import sent_message
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.protocol.message import FRAME_BYTES, Message, describe_invalid, loss_text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"kind": "welcome"}', "welcome.term is missing"),
        (
            '{"kind": "welcome", "term": "one"}',
            (
                "welcome.term: Input should be a valid integer, unable to parse string as an "
                "integer, got 'one'"
            ),
        ),
        ('{"kind": "welcome", "term": 1, "crew": 2}', "welcome.crew is not a known field"),
        (
            '{"kind": "refused", "a": 1, "b": 2}',
            (
                "refused.reason is missing; refused.final is missing; refused.a is not a known "
                "field; and 1 more"
            ),
        ),
    ],
)
def test_an_invalid_message_is_described_in_one_line(text: str, words: str) -> None:
    with pytest.raises(ValidationError) as raised:
        sent_message.validate_json(text)
    assert describe_invalid(raised.value) == words


def test_a_value_of_any_length_is_shown_shortened() -> None:
    with pytest.raises(ValidationError) as raised:
        sent_message.validate_json('{"kind": "welcome", "term": "' + "x" * 10_000 + '"}')
    assert len(describe_invalid(raised.value)) < 300


@pytest.mark.parametrize(
    ("loss", "text"),
    [(3.21441, "3.2144"), (0.0, "0.0000"), (0.0031, "0.0031"), (3e-5, "3.000e-05")],
)
def test_a_loss_is_shown_with_its_significant_digits(loss: float, text: str) -> None:
    assert loss_text(loss) == text


def messages(base: type[Message] = Message) -> Iterator[type[Message]]:
    """Those that pods send each other. Others stay within a pod."""
    for each in base.__subclasses__():
        if each.__module__.startswith("regroup_trainer.protocol."):
            yield each
        yield from messages(each)


def fields_of(message: type[Message]) -> Any:
    schema: Any = message.__pydantic_core_schema__
    while schema["type"] != "model":  # its validators are around it
        schema = schema["schema"]
    return schema["schema"]


def lists(schema: Any) -> Iterator[dict[str, Any]]:
    """The schemas of lists of any length below this one, without those of other messages."""
    if isinstance(schema, dict) and schema.get("type") != "model":
        if "variadic_item_index" in schema or schema.get("type") in ("list", "set", "frozenset"):
            yield schema
        schema = [part for key, part in schema.items() if key != "serialization"]
    for part in schema if isinstance(schema, list | tuple) else ():
        yield from lists(part)


def test_each_list_of_each_message_is_read_up_to_its_first_wrong_entry() -> None:
    """Each entry that is wrong has errors of its own, a kilobyte for each of its fields."""
    found = {
        (message.__name__, number): each.get("fail_fast", False)
        for message in messages()
        for number, each in enumerate(lists(fields_of(message)))
    }
    assert {"CoordinatorStatus", "HelloContent", "GenerationRecord"} <= {name for name, _ in found}
    assert {where for where, is_fast in found.items() if not is_fast} == set()


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (ShortHello, '{"busy":[' + ",".join(["{}"] * 80_000) + "]}"),
        (ShortHello, '{"snapshots":[{"shards":[' + ",".join(['""'] * 80_000) + "]}]}"),
        (ShortHello, "{" + ",".join(f'"{field:x}":0' for field in range(25_000)) + "}"),
        (CoordinatorStatus, '{"generation":[' + ",".join(["0"] * 120_000) + "]}"),
    ],
)
def test_what_is_wrong_with_a_message_takes_little_memory(
    message: type[Message], text: str
) -> None:
    """Each field that is missing has the whole message, decoded, as its input."""
    assert len(text) < FRAME_BYTES
    tracemalloc.start()
    try:
        with pytest.raises(ValidationError) as raised:
            message.model_validate_json(text)
        assert len(describe_invalid(raised.value)) < 500
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 48 * 2**20, f"{peak / 2**20:.1f} MiB"


def test_a_message_with_thousands_of_problems_has_them_counted() -> None:
    with pytest.raises(ValidationError) as raised:
        ShortHello.model_validate({str(field): 0 for field in range(5000)})
    assert "of its values are wrong, missing or not known" in describe_invalid(raised.value)
    with pytest.raises(ValueError, match=r"^protocol None: 5005 of its values are wrong, missing"):
        CoordinatorStatus.read({str(field): 0 for field in range(5000)})
