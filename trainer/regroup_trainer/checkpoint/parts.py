"""What each rank wrote of a checkpoint, sent to rank 0 over the generation's store. Torch-free.

It is not a collective: writers run beside the training, and their collectives would have to be
ordered with those of the training.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from pydantic import Field

from regroup_trainer.checkpoint.layout import FileRecord, Record
from regroup_trainer.system.backoff import retry_seconds

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
"""Seconds between two checks of the store."""


class SavedPart(Record):
    """One rank's part of one save."""

    rank: int
    files: dict[str, FileRecord] = Field(default={})
    objects: dict[str, tuple[int, int]] = Field(default={})
    """Name of each object that is not a tensor -> its offset and length in the rank's file of
    objects.
    """
    problem: str = ""
    """Why the rank could not write, and deleted its files; empty when it could."""


class Store(Protocol):
    """The methods of torch's key-value store that are used here."""

    def set(self, key: str, value: str) -> None:
        """Set the value of a key."""

    def get(self, key: str) -> bytes:
        """The value of a key."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys have a value."""

    def delete_key(self, key: str) -> bool:
        """Remove a key. Returns whether it was there."""


@dataclass(frozen=True)
class SavedParts:
    """Exchanges the parts of all saves of a generation. `store` is a connection that nobody else
    uses.
    """

    store: Store
    world_size: int

    def send(self, save: int, part: SavedPart) -> None:
        """Send this rank's part of the save with this number."""
        self.store.set(_key(save, part.rank), part.model_dump_json())

    def collect(self, save: int, given_up: threading.Event) -> list[SavedPart] | None:
        """Wait for the parts of all ranks; returns them in rank order, None when `given_up` is set
        first.
        """
        keys = [_key(save, rank) for rank in range(self.world_size)]
        checks = 1
        while not self.store.check(keys):
            if given_up.wait(retry_seconds(checks, _FIRST_PAUSE, _LONGEST_PAUSE)):
                return None
            checks += 1
        parts = [SavedPart.model_validate_json(self.store.get(key)) for key in keys]
        for key in keys:
            self.store.delete_key(key)
        return parts


def _key(save: int, rank: int) -> str:
    return f"checkpoint/{save}/{rank}"
