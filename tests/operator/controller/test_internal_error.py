"""An unexpected error stands in the status, whatever is stored there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.controller.internal_error import (
    describe,
    event_of,
    event_of_unread,
    status_with_error,
    unread,
)
from regroup_operator.decide.plan import MESSAGE_LIMIT
from regroup_operator.errors import UnreadableObjectError

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    "stored", [None, 7, [], {"conditions": 3}, {"conditions": [None, {"type": "Ready"}, 4]}]
)
def test_it_is_written_over_whatever_is_stored(stored: Any) -> None:
    message = describe(ValueError("x" * 5000))
    status = status_with_error(stored, 3, message, NOW)
    TrainingJobStatus.model_validate(status)
    assert len(message) <= MESSAGE_LIMIT
    assert status["conditions"] == [
        {
            "type": "Ready",
            "status": "False",
            "reason": "InternalError",
            "message": message,
            "lastTransitionTime": "2026-01-02T00:00:00Z",
            "observedGeneration": 3,
        }
    ]


def test_everything_else_stays_and_the_same_error_changes_nothing() -> None:
    stored = {"coordinatorTerm": 4, "conditions": [{"type": "Complete", "status": "False"}]}
    message = describe(KeyError("spec"))
    first = status_with_error(stored, 3, message, NOW)
    assert first["coordinatorTerm"] == 4
    assert first["conditions"][1:] == stored["conditions"]
    assert status_with_error(first, 3, message, datetime(2027, 1, 1, tzinfo=UTC)) == first


def test_one_event_for_each_kind_of_error_and_spec() -> None:
    one, other = (event_of(KeyError(text), "m", 3) for text in ("a", "b"))
    assert one.key == other.key
    assert event_of(KeyError("a"), "m", 4).key != one.key
    assert event_of(TypeError("a"), "m", 3).key != one.key


def test_an_object_that_cannot_be_read_has_a_reason_and_an_event_for_each_sentence() -> None:
    waiting = unread(UnreadableObjectError.pod("/pods", "x" * MESSAGE_LIMIT))
    status = status_with_error({}, 3, waiting.message, NOW, waiting.reason)
    TrainingJobStatus.model_validate(status)
    (ready,) = status["conditions"]
    assert (ready["reason"], ready["message"]) == ("ObjectConflict", waiting.message)
    other = unread(UnreadableObjectError.pod("/pods", "y"))
    assert event_of_unread(waiting, 3) == event_of_unread(waiting, 3)
    assert event_of_unread(waiting, 3).key != event_of_unread(other, 3).key
    assert event_of_unread(waiting, 3).key != event_of_unread(waiting, 4).key
