"""DCP's `.metadata` file: what a checkpoint contains, and where in its files each piece lies.

The file is a pickle. It is read by a list of DCP's classes, and each value of it is checked.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from regroup_trainer.checkpoint.parts import SavedPart
from regroup_trainer.protocol.message import quote
from regroup_trainer.system import restricted_pickle
from regroup_trainer.system.restricted_pickle import StandIn

T = TypeVar("T")
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


class DamagedError(ValueError):
    """A description is not one that DCP writes, or contradicts the files that it describes."""


def read_metadata(content: bytes, sizes: Mapping[str, int]) -> Metadata:
    """The description in a `.metadata` file; `sizes` has the bytes of each file beside it.

    No code that the file names runs. Raises DamagedError.
    """
    found = _read(content)
    metadata = _metadata(found)
    places = _places(_state(found, "Metadata").get("storage_data"))
    _require_in_files(places, sizes)
    _require_stored(metadata, places)
    metadata.storage_data = places
    return metadata


def read_pickled(content: bytes) -> tuple[Metadata, Places, Owners]:
    """The inverse of `Description.pickled`. No code that the content names runs. Raises
    DamagedError.
    """
    found = _typed(tuple, _read(content), "description of a snapshot")
    if len(found) != 3:
        raise DamagedError("it is no description of a snapshot")
    metadata, places = _metadata(found[0]), _places(found[1])
    owners = {
        _typed(str, name, "name"): _typed(int, rank, "rank")
        for name, rank in _typed(dict, found[2], "list of owners").items()
    }
    _require_stored(metadata, places)
    return metadata, places, owners


_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = (
    *((_METADATA, kind.__name__) for kind in (Metadata, MetadataIndex, TensorProperties)),
    *((_METADATA, kind.__name__) for kind in (TensorStorageMetadata, ChunkStorageMetadata)),
    *((_METADATA, name) for name in ("BytesStorageMetadata", "StorageMeta")),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    *((module, "PosixPath") for module in ("pathlib", "pathlib._local")),  # the latter: Python 3.13
)
_DTYPES = {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
_FILE = re.compile(r"__\d{1,9}_\d{1,9}\.distcp", re.ASCII)
_MOST = 1 << 62
"""Of a size or an offset."""


def _value(module: str, name: str) -> Any:
    """What is harmless by itself: the types of elements, and torch.Size."""
    if (module, name) == ("torch", "Size"):
        return torch.Size
    return _DTYPES.get(f"torch.{name}") if module.partition(".")[0] == "torch" else None


def _read(content: bytes) -> Any:
    try:
        return restricted_pickle.read(content, _ALLOWED, _value)[0]
    except Exception as error:  # unpickling raises what it meets
        raise DamagedError(str(error) or type(error).__name__) from error


def _typed(kind: type[T], found: Any, what: str) -> T:
    """`found`, which must be exactly of this type."""
    if type(found) is not kind:
        raise DamagedError(f"it holds a {type(found).__name__} where a {what} belongs")
    return found


def _state(found: Any, name: str) -> dict[str, Any]:
    """The fields of an object of the class `name`."""
    if not isinstance(found, StandIn) or type(found).__name__ != name:
        raise DamagedError(f"it holds a {type(found).__name__} where a {name} belongs")
    return _typed(dict, found.state, f"state of a {name}")


def _metadata(found: Any) -> Metadata:
    described = _state(found, "Metadata").get("state_dict_metadata")
    items = _typed(dict, described, "description of tensors").items()
    return Metadata({_typed(str, name, "name"): _described(what) for name, what in items})


def _described(found: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if type(found).__name__ == "BytesStorageMetadata":
        return BytesStorageMetadata()
    state = _state(found, "TensorStorageMetadata")
    chunks = [_chunk(chunk) for chunk in _typed(list, state.get("chunks"), "list of chunks")]
    properties = TensorProperties(dtype=_dtype(state.get("properties")))
    return TensorStorageMetadata(properties, _size(state.get("size")), chunks)


def _dtype(properties: Any) -> torch.dtype:
    """The type of a tensor's elements, the first of its properties. The others are not read."""
    values = properties.state if isinstance(properties, StandIn) else None
    first = values[0] if isinstance(values, tuple) and values else None
    return _typed(torch.dtype, first, "type of elements")


def _chunk(found: Any) -> ChunkStorageMetadata:
    state = _state(found, "ChunkStorageMetadata")
    return ChunkStorageMetadata(_size(state.get("offsets")), _size(state.get("sizes")))


def _places(found: Any) -> Places:
    places = _typed(dict, found, "list of places")
    return {_index(index): _place(place) for index, place in places.items()}


def _index(found: Any) -> MetadataIndex:
    state = _state(found, "MetadataIndex")
    name, offset = _typed(str, state.get("fqn"), "name"), state.get("offset")
    # The number of the chunk is a hint only, and not needed to find the place.
    return MetadataIndex(name, None if offset is None else _size(offset))


def _place(found: Any) -> _StorageInfo:
    state = _state(found, "_StorageInfo")
    file = _typed(str, state.get("relative_path"), "name of a file")
    if not _FILE.fullmatch(file):
        raise DamagedError(f"it refers to the file {file!r:.80}, which is no shard")
    if state.get("transform_descriptors"):
        raise DamagedError("its files are transformed, which Regroup does not write")
    return _StorageInfo(file, _number(state.get("offset")), _number(state.get("length")))


def _number(found: Any) -> int:
    number = _typed(int, found, "number")
    if not 0 <= number < _MOST:
        raise DamagedError(f"it holds the number {quote(number)} for a size or a place")
    return number


def _size(found: Any) -> torch.Size:
    return torch.Size(_number(number) for number in _typed(torch.Size, found, "size"))


def _require_in_files(places: Places, sizes: Mapping[str, int]) -> None:
    for place in places.values():
        size = sizes.get(place.relative_path)
        if size is None:
            raise DamagedError(f"it refers to {place.relative_path}, which is not there")
        if place.offset + place.length > size:
            raise DamagedError(f"it refers to more of {place.relative_path} than {size} bytes")


def _require_stored(metadata: Metadata, places: Places) -> None:
    """A tensor may not be larger than what is stored of it: it is allocated before it is read."""
    stored: dict[str, int] = {}
    for index, place in places.items():
        stored[index.fqn] = stored.get(index.fqn, 0) + place.length
    for name, what in metadata.state_dict_metadata.items():
        if isinstance(what, TensorStorageMetadata):
            if name not in stored:
                raise DamagedError(f"it says no place of {name!r:.80}")
            wanted = math.prod(what.size) * what.properties.dtype.itemsize
            if wanted > stored[name]:
                raise DamagedError(f"{name!r:.80} has {wanted} bytes, of which fewer are stored")
