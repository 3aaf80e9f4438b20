"""What each rank wrote of a checkpoint, told to its publisher over the generation's store. Torch-free.

Not by a collective: writers run beside the training, whose collectives theirs would have to be ordered with.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from pydantic import Field

from regroup_trainer.checkpoint.layout import FileRecord, Record

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
"""Seconds between looks at the store."""


class Part(Record):
    """One rank's part of one save."""

    rank: int
    files: dict[str, FileRecord] = Field(default={})
    objects: dict[str, tuple[int, int]] = Field(default={})
    """Name of each object that is not a tensor -> its offset and length in the rank's file of objects."""
    problem: str = ""
    """Why the rank could not write; it has deleted its files then."""


class Store(Protocol):
    """What is needed of torch's key-value store."""

    def set(self, key: str, value: str) -> None:
        """Tell."""

    def get(self, key: str) -> bytes:
        """Hear."""

    def check(self, keys: list[str]) -> bool:
        """Whether all have been told."""

    def delete_key(self, key: str) -> bool:
        """Forget."""


@dataclass(frozen=True)
class Parts:
    """The parts of all saves of a generation. `store` must be a connection that nobody else uses."""

    store: Store
    world_size: int

    def tell(self, save: int, part: Part) -> None:
        """Send this rank's part of the save with this number."""
        self.store.set(_key(save, part.rank), part.model_dump_json())

    def collect(self, save: int, given_up: threading.Event) -> list[Part] | None:
        """Wait for the parts of all ranks, in rank order; None when `given_up` is set first."""
        keys = [_key(save, rank) for rank in range(self.world_size)]
        pause = _FIRST_PAUSE
        while not self.store.check(keys):
            if given_up.wait(pause):
                return None
            pause = min(2 * pause, _LONGEST_PAUSE)
        parts = [Part.model_validate_json(self.store.get(key)) for key in keys]
        for key in keys:
            self.store.delete_key(key)
        return parts


def _key(save: int, rank: int) -> str:
    return f"checkpoint/{save}/{rank}"
