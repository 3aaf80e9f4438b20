"""The base of every message, the version of the protocol, and how texts for users quote what
somebody wrote. Torch-free and Kubernetes-free.

Every message is one JSON object, and `kind` names its class. A change that an older peer would
misread or refuse raises PROTOCOL_VERSION, once for a release. A new field of Desired is one, since
older peers refuse fields that they do not know. A hello of another version is refused.

| from        | over      | to           | messages                                              |
|-------------|-----------|--------------|-------------------------------------------------------|
| operator    | HTTP      | coordinator  | `desired`; it answers with `job_status`               |
| operator    | HTTP      | agents       | CoordinatorAddress of `desired`; they answer with     |
|             |           |              | CoordinatorContact                                    |
| agent       | WebSocket | coordinator  | `agent_messages`, with its ranks' `rank_messages`     |
| agent       | frames    | coordinator  | heartbeats (`system/heartbeat_line.py`)               |
| coordinator | WebSocket | agent        | `coordinator_messages`                                |
| either      | WebSocket | the other    | records of generations (`record_transfer`)            |
| agent       | HTTP      | other agents | memory snapshots                                      |
| rank        | socket    | its agent    | `rank_messages`                                       |
| agent       | socket    | its ranks    | Decide, Enter and LeaveGeneration of                  |
|             |           |              | `coordinator_messages`                                |
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

PROTOCOL_VERSION = 3
FRAME_BYTES = 256 * 1024
"""Of the largest message between agent and coordinator. Each closes the connection upon a larger
one.
"""
TEXT_LIMIT = 4096
"""Characters of the longest text in a message: longer ones are cut by whoever makes it."""
QUOTE_LIMIT = 100
"""Characters that are shown of a word or a value."""
MOST_NAMED = 3
"""Names that a sentence holds at most."""
_MOST_WORDS = 50
_MOST_PROBLEMS = 3
_MOST_ERRORS = 1000
"""Of an invalid message, that are looked at. Pydantic makes them all at once, a kilobyte each."""
_TOO_WRONG = "{} of its values are wrong, missing or not known"
Text = Annotated[str, Field(max_length=TEXT_LIMIT)]
NAME_LIMIT = 253
"""Characters of the longest name of an object in Kubernetes."""
Name = Annotated[str, Field(max_length=NAME_LIMIT)]


HIGHEST_NUMBER = 2**63 - 1
"""Of a whole number in a message, and the lowest one's opposite."""
Count = Annotated[int, Field(ge=0, le=HIGHEST_NUMBER)]
"""A whole number in a list, which Message does not look into."""
WallClock = Annotated[float, Field(ge=0, le=253_402_300_799)]
"""Seconds since the epoch, up to the year 9999: what can be shown as a date."""


class Message(BaseModel):
    """Base of all messages: immutable. Unknown fields are an error, since versions are agreed.
    A list is read up to its first wrong entry (`fail_fast`): a peer may send a hundred thousand.

    As JSON, numbers are finite. (We write null for others, and other programs might not.)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="after")
    def _numbers_are_bounded(self, info: ValidationInfo) -> Self:
        if info.mode == "json":
            for name in self.model_fields_set:
                value = getattr(self, name)
                for number in value.values() if isinstance(value, dict) else (value,):
                    _require_bounded(name, number)
        return self


def _require_bounded(name: str, value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name}: {value} is not a finite number")
    if isinstance(value, int) and abs(value) > HIGHEST_NUMBER:
        raise ValueError(f"{name}: {quote(value)} is more than 63 bits can hold")


class _ShortRepr(reprlib.Repr):
    """Looks at few elements, so that the time is bounded where lists hold lists."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxstring = self.maxother = QUOTE_LIMIT

    def repr_int(self, x: int, level: int) -> str:
        """A number. Python does not write those of thousands of digits."""
        if x.bit_length() > 4 * QUOTE_LIMIT:
            return f"a number of {x.bit_length()} bits"
        return super().repr_int(x, level)


_REPR = _ShortRepr()


def printable(text: str) -> str:
    """The text in one line, with escapes for what a log or a terminal would interpret."""
    return text if text.isprintable() else repr(text)[1:-1]


def loss_text(loss: float) -> str:
    """A loss for people: four decimals, or four significant digits where those would hide it."""
    return f"{loss:.3e}" if 0 < abs(loss) < 1e-3 else f"{loss:.4f}"


def shorten(text: str) -> str:
    """The beginning of a text, with escapes for what cannot be printed."""
    shown = printable(text[: QUOTE_LIMIT + 1])
    return shown if len(shown) <= QUOTE_LIMIT else f"{shown[:QUOTE_LIMIT]}..."


def quote(value: object) -> str:
    """A value as Python would write it, but shortened."""
    return shorten(_REPR.repr(value))


def listed(words: Sequence[str]) -> str:
    """Words with commas between them, each shortened."""
    more = ["..."] if len(words) > _MOST_WORDS else []
    return ", ".join([*map(shorten, words[:_MOST_WORDS]), *more])


def named(names: Iterable[str], count: int) -> str:
    """The first of `count` names, and how many more there are: "w0, w1, w2 and 37 more"."""
    first = ", ".join(islice(names, MOST_NAMED))
    return f"{first} and {count - MOST_NAMED} more" if count > MOST_NAMED else first


def describe_invalid(error: ValidationError, names: Mapping[str, str] | None = None) -> str:
    """Which fields are wrong, why, and what they hold, in one line: the first few of them. `names`:
    what a reader calls a field, where that differs.
    """
    names, count = names or {}, error.error_count()
    if count > _MOST_ERRORS:
        return _TOO_WRONG.format(count)
    found = error.errors(include_url=False, include_context=False)
    more = [f"and {count - _MOST_PROBLEMS} more"] if count > _MOST_PROBLEMS else []
    return "; ".join([*(_problem(one, names) for one in found[:_MOST_PROBLEMS]), *more])


def first_problem(error: ValidationError) -> str:
    """The first field that is wrong, and why, in one line, without what it holds."""
    if error.error_count() > _MOST_ERRORS:
        return _TOO_WRONG.format(error.error_count())
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{shorten('.'.join(map(str, found['loc'])))}: {found['msg']}"


def _problem(found: Any, names: Mapping[str, str]) -> str:
    path = ".".join(names.get(str(part), shorten(str(part))) for part in found["loc"])
    what = {"missing": "is missing", "extra_forbidden": "is not a known field"}.get(found["type"])
    if what is not None:
        return f"{path} {what}"
    message = found["msg"].removeprefix("Value error, ")
    whole = isinstance(found["input"], dict | list | BaseModel)
    given = "" if whole else f", got {quote(found['input'])}"
    return f"{path}: {message}{given}" if path else f"{message}{given}"
