"""The names of the files that belong to one generation in a job's directory on the volume, and of
its checkpoints. Pure.

lineage/<term>-<n>.claim      reserves the number of a generation; the coordinator creates it
lineage/<term>-<n>.room       room for the next file, so that a full volume can take it
lineage/<term>-<n>.json       what the generation resumed from; its rank 0 writes it
history/<term>-<n>.jsonl      the steps that the generation committed
history/<term>-<n>.gaps       the steps that its history had to leave out

`checkpoint/layout.py` lists what is in `checkpoints/`.
"""

from __future__ import annotations

import re

from regroup_trainer.protocol.generation import GenerationNumber

LINEAGE_FOLDER = "lineage"
HISTORY_FOLDER = "history"
CHECKPOINTS_FOLDER = "checkpoints"
_RECORD = re.compile(r"(\d+)-(\d+)\.jsonl?", re.ASCII)
_ROOM = re.compile(r"(\d+)-(\d+)\.room", re.ASCII)
_RESERVATION = re.compile(r"(\d+)-(\d+)\.claim", re.ASCII)


def file_stem(generation: GenerationNumber) -> str:
    """The name of a generation's files without their suffix."""
    return f"{generation.term}-{generation.n}"


def reservation_name(generation: GenerationNumber) -> str:
    """The file whose exclusive creation reserves the number."""
    return f"{file_stem(generation)}.claim"


def room_name(generation: GenerationNumber) -> str:
    """The file that becomes the generation's lineage record."""
    return f"{file_stem(generation)}.room"


def lineage_name(generation: GenerationNumber) -> str:
    """The generation's lineage record."""
    return f"{file_stem(generation)}.json"


def history_name(generation: GenerationNumber) -> str:
    """The generation's committed steps."""
    return f"{file_stem(generation)}.jsonl"


def gaps_name(generation: GenerationNumber) -> str:
    """The steps that are not in the generation's history."""
    return f"{file_stem(generation)}.gaps"


def generation_of(name: str) -> GenerationNumber | None:
    """The generation of a lineage record or history file; None for any other name."""
    return _number(_RECORD.fullmatch(name))


def reserved_number(name: str) -> GenerationNumber | None:
    """The number that a file reserves; None for any other name."""
    return _number(_RESERVATION.fullmatch(name))


def room_number(name: str) -> GenerationNumber | None:
    """The number for which a file keeps room; None for any other name."""
    return _number(_ROOM.fullmatch(name))


def _number(match: re.Match[str] | None) -> GenerationNumber | None:
    return GenerationNumber(int(match[1]), int(match[2])) if match else None


def checkpoint_name(step: int) -> str:
    """The folder of a published checkpoint, in that of all checkpoints."""
    return f"step-{step}"


def checkpoint_path(step: int) -> str:
    """The folder of a published checkpoint, below the job's directory."""
    return f"{CHECKPOINTS_FOLDER}/{checkpoint_name(step)}"
