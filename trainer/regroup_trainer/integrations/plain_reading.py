"""Has a library read what it saved without running code that the files name.

Whoever can write to the volume writes these files too. Libraries call `torch.load` with
`weights_only=False` for objects of the user, and torch unpickles the description of a sharded
state. Here torch's own switch forbids the first, and our reading by a list replaces the second.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from regroup_trainer.checkpoint.load import CheckpointReader
from regroup_trainer.protocol.environment import TRUST_CHECKPOINTS
from regroup_trainer.step.plain_values import not_plain

_SWITCHES: Mapping[str, str | None] = {
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": None,  # torch refuses both together
}


@contextlib.contextmanager
def plain_values_only(what: str) -> Iterator[None]:
    """Until its end, this process reads tensors and plain values only; anything it is given with
    REGROUP_TRUST_CHECKPOINTS=1. Raises CheckpointError, which names `what`, for other content.
    """
    if os.environ.get(TRUST_CHECKPOINTS) == "1":
        yield
        return
    with _switched(_SWITCHES), _described_by_list():
        try:
            yield
        except pickle.UnpicklingError as error:
            raise not_plain(what, error) from error


@contextlib.contextmanager
def _switched(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables of the environment, or unset them, and give them their former values back."""
    former = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(former)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _described_by_list() -> Iterator[None]:
    """Have torch's reader of sharded states read their description as ours does."""
    former = FileSystemReader.read_metadata
    setattr(FileSystemReader, "read_metadata", _described)  # noqa: B010
    try:
        yield
    finally:
        setattr(FileSystemReader, "read_metadata", former)  # noqa: B010


def _described(reader: FileSystemReader, *_args: Any, **_kwargs: Any) -> Metadata:
    return CheckpointReader(Path(reader.path)).read_metadata()
