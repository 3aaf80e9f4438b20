"""The names of the files that belong to one generation in a job's directory on the volume. Pure.

lineage/<term>-<n>.claim      reserves the number of a generation; the coordinator creates it
lineage/<term>-<n>.json       what the generation resumed from; its rank 0 writes it
history/<term>-<n>.jsonl      the steps that the generation committed
"""

from __future__ import annotations

import re

from regroup_trainer.protocol.generation import GenerationNumber

LINEAGE_FOLDER = "lineage"
HISTORY_FOLDER = "history"
_RECORD = re.compile(r"(\d+)-(\d+)\.jsonl?", re.ASCII)
_RESERVATION = re.compile(r"(\d+)-(\d+)\.claim", re.ASCII)


def file_stem(generation: GenerationNumber) -> str:
    """The name of a generation's files without their suffix."""
    return f"{generation.term}-{generation.n}"


def reservation_name(generation: GenerationNumber) -> str:
    """The file whose exclusive creation reserves the number."""
    return f"{file_stem(generation)}.claim"


def lineage_name(generation: GenerationNumber) -> str:
    """The generation's lineage record."""
    return f"{file_stem(generation)}.json"


def history_name(generation: GenerationNumber) -> str:
    """The generation's committed steps."""
    return f"{file_stem(generation)}.jsonl"


def generation_of(name: str) -> GenerationNumber | None:
    """The generation of a lineage record or history file; None for any other name."""
    return _number(_RECORD.fullmatch(name))


def reserved_number(name: str) -> GenerationNumber | None:
    """The number that a file reserves; None for any other name."""
    return _number(_RESERVATION.fullmatch(name))


def _number(match: re.Match[str] | None) -> GenerationNumber | None:
    return GenerationNumber(int(match[1]), int(match[2])) if match else None
