"""Reads what a coordinator answers. Pure.

The coordinator runs in a tenant's namespace, in an image and on a volume of theirs. So its answer
is bounded before anything is computed with it: what it says must be storable in the status, and be
a time or a number that calculations survive. An answer outside the bounds is not taken in parts.
"""

from __future__ import annotations

import math
import sys
import unicodedata
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from regroup_operator.api.status import LEDGER_PHASES, PHASE_LIMIT, STRAGGLERS_KEPT
from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS
from regroup_trainer.protocol.job_status import (
    CoordinatorStatus,
    MemberStatus,
    require_known_protocol,
)
from regroup_trainer.protocol.message import Message, quote, shorten

MOST_BYTES = 4 * 1024 * 1024
"""Of an answer. One about 4,096 workers, the most that a job may have, takes about 1.5 MiB."""
_BYTES = (256 * 1024, 1024)
"""Of an answer about no workers, and for each one: it is kept, some ten times as large."""
_VALUES = (10_000, 32)
"""Commas and brackets, likewise. An answer has 10 for each worker, texts have some. One stands
before each value or its name: so they bound what decoding makes. Each costs about 1 us.
"""
_ENTRIES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("members", "agents_in_contact"), (1024, 1)),
    "events": (200, 0),
    "recoveries": (40, 0),
}
"""Name of a list -> entries, likewise. Coordinators list 50 events and 10 recoveries. A member that
is kept takes 0.7 kB, and up to 1.2 kB with long names.
"""
_MEMBER_FIELDS = set(MemberStatus.model_fields)
_MEMBER_BYTES = 512
"""Of a member that is kept without its texts, and of what is remembered beside the answer for it:
since when it is lost, or that it is in contact.
"""
_LEVELS = 16
"""Objects and lists in one another. Coordinators need 4."""
_FIELDS = 64
"""Of an object. Each that is not known is an error with a path and a text of its own."""
_PIECE = 4096
"""Characters that are looked at together."""
_COUNT = (0, 2**31 - 1)
"""Range of a whole number where `_RANGES` has no other: the status holds no larger one."""
_WIDE = (0, 2**53 - 1)
"""Whole numbers that JSON holds."""
_WALL = (0, 253_370_764_800)
"""Seconds since the epoch, before the year 9999."""
_DURATION = (-(10**12), 10**12)
"""Seconds: sums of them stay finite. A clock that was set back makes small negative ones."""
_RANGES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("time", "since"), _WALL),
    **dict.fromkeys(("seconds", "lost_work_seconds", "detect_seconds", "down_seconds"), _DURATION),
    **dict.fromkeys(("gpu_seconds", "lost_gpu_seconds"), _DURATION),
    **dict.fromkeys(("sequence", "revision", "tokens", "step", "total_steps"), _WIDE),
    **dict.fromkeys(("lost_steps", "unflushed_steps", "resumed_from_step"), _WIDE),
    "restarts": (0, 10**8),
    "exit_code": (-(2**31), 2**31 - 1),
    "size_bytes": (0, 2**60),
}
"""Name of a field -> the least and the most that its numbers may be."""
_MAPS = ("seconds", "gpu_seconds", "restarts")
"""Fields that hold numbers by name."""


def most_bytes(workers: int) -> int:
    """How large the answer of a job with so many workers may be."""
    base, each = _BYTES
    return min(base + each * workers, MOST_BYTES)


def read_answer(
    data: bytes | bytearray, term: int, workers: int = DEFAULT_MAX_WORKERS
) -> CoordinatorStatus:
    """The status that a coordinator of this term, of a job with so many workers, answered. Raises
    ValueError with a sentence that names the field and the value.

    What an answer costs is bounded before it is decoded: the operator has one thread for all jobs.
    """
    most, values = most_bytes(workers), _VALUES[0] + _VALUES[1] * workers
    if len(data) > most:
        raise ValueError(f"it has more than {most} bytes, and the job {workers} workers")
    if sum(map(data.count, b",[{")) > values:
        raise ValueError(f"it has more than {values} values, and the job {workers} workers")
    document = from_json(data, allow_inf_nan=False)
    if b"\\" in data or not data.isascii():  # nothing else holds a control character
        _replace_control_characters(document)
    require_known_protocol(document)
    if problem := _too_many(document, workers) or _out_of_bounds(document):
        raise ValueError(problem)
    status = CoordinatorStatus.read(document)
    if status.term != term:
        raise ValueError(
            f"a coordinator of term {status.term} answers, and that of term {term} is asked"
        )
    for member in status.members:  # a set takes half of what a member does, and all have the same
        object.__setattr__(member, "__pydantic_fields_set__", _MEMBER_FIELDS)
    return status.model_copy(update={"stragglers": status.stragglers[:STRAGGLERS_KEPT]})


def kept_bytes(value: object) -> int:
    """What a status, or a part of it, takes in memory, about."""
    match value:
        case MemberStatus():
            texts = value.member, value.pod, value.node, value.lost
            return _MEMBER_BYTES + sum(map(sys.getsizeof, texts))
        case Message():
            own = sum(map(sys.getsizeof, (value, vars(value), value.model_fields_set)))
            return own + sum(map(kept_bytes, vars(value).values()))
        case tuple() | list():
            return sys.getsizeof(value) + sum(map(kept_bytes, value))
        case dict():
            return sys.getsizeof(value) + sum(map(kept_bytes, (*value, *value.values())))
    return sys.getsizeof(value)


def _replace_control_characters(document: Any) -> None:
    """Replace what a terminal would interpret in all texts of a document, which status and Events
    show. Line breaks, tabs and wide spaces stay, and so do the lengths. Without recursion. Names
    stay as they are: `_of_names` refuses them, and no field has such a one.
    """
    waiting: list[dict[str, Any] | list[Any]] = [document] if isinstance(document, dict) else []
    while waiting:
        whole = waiting.pop()
        for place, value in whole.items() if isinstance(whole, dict) else enumerate(whole):
            if isinstance(value, dict | list):
                waiting.append(value)
            elif isinstance(value, str) and not value.isprintable():
                whole[place] = _shown(value)  # type: ignore[index]


def _shown(text: str) -> str:
    """In pieces: a character that is looked at takes more than 80 bytes meanwhile."""
    pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    return "".join(
        piece.translate({ord(c): _stands_for(c) for c in set(piece)}) for piece in pieces
    )


def _stands_for(character: str) -> str:
    is_space = character in "\n\t" or unicodedata.category(character) == "Zs"
    return character if is_space or character.isprintable() else "\ufffd"


def _too_many(document: Any, workers: int) -> str:
    """The first list that has more entries than the job has workers; empty when there is none.
    Before they are read: each entry that is wrong is an error with a path of its own.
    """
    fields = document if isinstance(document, dict) else {}
    for name, (base, each) in _ENTRIES.items():
        entries, most = fields.get(name), base + each * workers
        if isinstance(entries, list) and len(entries) > most:
            return f"{name}: has {len(entries)} entries, and at most {most} are possible"
    return ""


def _out_of_bounds(document: Any) -> str:
    """The first value that is too large or too deep, with its path; empty when there is none."""
    path, problem = _search(document, "", _LEVELS)
    return f"{shorten(path)}: {problem}" if path else problem and f"it {problem}"


def _search(value: Any, name: str, levels: int) -> tuple[str, str]:
    """The path and the problem of the first value that is out of bounds; both empty when there is
    none. Paths are made on the way back: one of each value would be a thousand times the answer.
    """
    if not isinstance(value, dict | list):
        is_number = isinstance(value, int | float)
        return "", _of_number(value, name) if is_number else ""
    if not levels:
        return "", f"has more than {_LEVELS} objects and lists in one another"
    is_map = name in _MAPS
    if isinstance(value, list):
        found = (_search(entry, name, levels - 1) for entry in value)
        return next((each for each in found if each[1]), ("", ""))
    if problem := _of_object(value, is_map):
        return "", problem
    for key, entry in value.items():
        path, problem = _search(entry, name if is_map else key, levels - 1)
        if problem:
            return f".{shorten(key)}{path}", problem
    return "", ""


def _of_object(value: Mapping[str, Any], is_map: bool) -> str:
    most = LEDGER_PHASES if is_map else _FIELDS
    if len(value) > most:
        return f"has {len(value)} entries, and at most {most} are possible"
    return _of_names(value) if is_map else ""


def _of_names(value: Mapping[str, Any]) -> str:
    """What is wrong with the names of a map, which the status shows."""
    for name in value:
        if len(name) > PHASE_LIMIT:
            return f"the name {quote(name)} has more than {PHASE_LIMIT} characters"
        if not name.isprintable():
            return f"the name {quote(name)} has characters that cannot be printed"
    return ""


def _whole_fields() -> frozenset[str]:
    schema = CoordinatorStatus.model_json_schema()
    parts = [schema, *schema.get("$defs", {}).values()]
    fields = [field for part in parts for field in part.get("properties", {}).items()]
    kinds = {name: [field, *field.get("anyOf", ())] for name, field in fields}
    return frozenset(n for n, of in kinds.items() if any(k.get("type") == "integer" for k in of))


_WHOLE = _whole_fields()
"""Fields that hold whole numbers. 1e15 is taken for one."""


def _of_number(value: float, name: str) -> str:
    if not isinstance(value, int) and not math.isfinite(value):  # an int may have 4,300 digits
        return f"must be finite, got {value}"
    is_whole = isinstance(value, int) or name in _WHOLE
    least, most = _RANGES.get(name, _COUNT if is_whole else (-math.inf, math.inf))
    in_range = least <= value <= most
    return "" if in_range else f"must lie between {least} and {most}, got {quote(value)}"
