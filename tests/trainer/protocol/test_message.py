"""How texts for users quote what somebody wrote, and name what is wrong with a message."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from regroup_trainer.protocol.coordinator_messages import sent_message
from regroup_trainer.protocol.message import describe_invalid, loss_text


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
