"""DCP's `.metadata` file: what a checkpoint contains, and where in its files each piece lies."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from regroup_trainer.checkpoint.parts import SavedPart

Places = dict[MetadataIndex, _StorageInfo]
Owners = dict[str, int]
"""Name of each object that is not a tensor -> the rank that stores it."""


def tensor_file(rank: int) -> str:
    """The file of a rank's tensors."""
    return f"__{rank}_0.distcp"


def object_file(rank: int) -> str:
    """The file of a rank's objects that are not tensors."""
    return f"__{rank}_1.distcp"


def place_objects(objects: dict[str, bytes]) -> dict[str, tuple[int, int]]:
    """Offset and length of each object in a file that holds them one after the other."""
    places, offset = {}, 0
    for name, content in objects.items():
        places[name] = (offset, len(content))
        offset += len(content)
    return places


class Description:
    """Describes a checkpoint from the plan of all ranks and the places of their tensors. Rank 0 has
    it.
    """

    def __init__(
        self, metadata: Metadata, tensors: Sequence[Places], owners: Sequence[Owners]
    ) -> None:
        self._metadata = metadata
        self._metadata.version = CURRENT_DCP_VERSION
        self._tensors = {index: place for of_rank in tensors for index, place in of_rank.items()}
        self._owners = {name: rank for of_rank in owners for name, rank in of_rank.items()}
        self._made: tuple[Places, bytes] | None = None
        self._pickled: bytes | None = None

    def pickled(self) -> bytes:
        """(metadata, places of tensors, owners of objects), pickled; the same for every copy of the
        state.
        """
        if self._pickled is None:
            self._pickled = pickle.dumps((self._metadata, self._tensors, self._owners))
        return self._pickled

    def content(self, parts: Sequence[SavedPart]) -> bytes:
        """The content of `.metadata` for these parts.

        It is made again only when the lengths of objects have changed: pickling blocks other
        threads.
        """
        objects = {
            MetadataIndex(name): _StorageInfo(object_file(part.rank), offset, length)
            for part in parts
            for name, (offset, length) in part.objects.items()
        }
        if self._made is None or self._made[0] != objects:
            self._metadata.storage_data = {**self._tensors, **objects}
            self._made = (objects, pickle.dumps(self._metadata))
        return self._made[1]
