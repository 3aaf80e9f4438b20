"""Restores a memory snapshot. Each rank reads the shards that it needs, from its own agent or over
the network from others.

All ranks verify what they read before any state is changed. If something is not whole, the state is
restored from a checkpoint instead.
"""

from __future__ import annotations

import http.client
import io
import mmap
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import xxhash
from pydantic import TypeAdapter
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from regroup_trainer.checkpoint.description import Places, read_pickled, tensor_file
from regroup_trainer.checkpoint.frame import frame_of
from regroup_trainer.checkpoint.layout import DataIdentity, FileRecord, Manifest
from regroup_trainer.checkpoint.load import PlainLoadPlanner
from regroup_trainer.checkpoint.storage import put_back, tensors_of
from regroup_trainer.protocol.environment import AgentEnvironment
from regroup_trainer.protocol.generation import Assignment, GenerationNumber, SnapshotSource
from regroup_trainer.protocol.rank_messages import SnapshotFile
from regroup_trainer.snapshots.places import (
    CHECKSUM_HEADER,
    REST,
    TENSORS,
    held_file,
    path_on_agent,
    read_description,
)
from regroup_trainer.snapshots.snapshot_writer import Rest
from regroup_trainer.step.agreement import all_gather, broadcast_from_rank0
from regroup_trainer.step.state import Position, TrainState
from regroup_trainer.system import restricted_pickle
from regroup_trainer.system.connection_errors import why_no_answer
from regroup_trainer.system.restricted_pickle import StandIn

T = TypeVar("T")
_Memory = mmap.mmap | bytearray
_FETCH_SECONDS = 10.0
"""How long to wait for an agent that does not answer."""


class SnapshotProblem(Exception):
    """A shard is not available, or not whole."""


@dataclass(frozen=True)
class Contents:
    """What a snapshot contains, as rank 0 has read it for all ranks."""

    manifest: Manifest
    metadata: Metadata
    places: Places
    objects: dict[str, bytes]
    history: bytes
    """The newest steps that the volume may lack, as lines of the history."""


class MemoryReader:
    """Reads one snapshot. All ranks call its methods."""

    def __init__(self, assignment: Assignment, source: SnapshotSource) -> None:
        self._shards = Shards(Path(assignment.snapshots), source)
        self._source = source

    def open(self) -> Contents | str:
        """The contents of the snapshot, or why it cannot be used; the same on all ranks."""
        return broadcast_from_rank0(self._open)

    def load(self, state: TrainState, contents: Contents) -> str:
        """Fill `state`; world size and strategy may differ from those of the snapshot.

        Returns why the snapshot cannot be used, and leaves `state` as it was; empty when it was
        loaded.
        """
        tensors = tensors_of(state)
        planner = PlainLoadPlanner()
        planner.set_up_planner(tensors, contents.metadata)
        plan = planner.create_local_plan()
        memory, problem = self._fetch(plan, contents)
        problems = [f"rank {rank}: {why}" for rank, why in enumerate(all_gather(problem)) if why]
        if problems:
            return problems[0]
        for item in plan.items:
            _read(item, planner, contents, memory)
        put_back(state, tensors)
        manifest = contents.manifest
        state.position = Position(manifest.step, manifest.position, manifest.tokens)
        return ""

    def _open(self) -> Contents | str:
        try:
            first = self._rest(0)
            metadata, places, owners = _readable(0, lambda: read_pickled(first.description))
            rests = [first, *(self._rest(shard) for shard in sorted({*owners.values()} - {0}))]
        except SnapshotProblem as problem:
            return str(problem)
        objects = {name: content for rest in rests for name, content in rest.objects.items()}
        return Contents(first.manifest, metadata, places, objects, first.history)

    def _rest(self, shard: int) -> Rest:
        content = self._shards.read(shard, REST)
        return _readable(shard, lambda: read_rest(memoryview(content)))

    def _fetch(self, plan: LoadPlan, contents: Contents) -> tuple[dict[str, Tensor], str]:
        """The tensor files that the plan reads, by name, and why that failed (or "")."""
        wanted = {
            contents.places[i.storage_index].relative_path
            for i in plan.items
            if i.type != LoadItemType.BYTE_IO
        }
        names = {tensor_file(shard): shard for shard in range(self._source.number.shards)}
        memory = {}
        try:
            for name in sorted(wanted):
                memory[name] = torch.frombuffer(
                    self._shards.read(names[name], TENSORS), dtype=torch.uint8
                )
        except SnapshotProblem as problem:
            return {}, str(problem)
        return memory, ""


def _readable(shard: int, read: Callable[[], T]) -> T:
    """What `read` returns. Raises SnapshotProblem where it fails: during an upgrade, the rank that
    wrote the shard may have been of another release.
    """
    try:
        return read()
    except Exception as error:  # unpickling raises what it meets
        problem = f"{type(error).__name__}: {error}"
        raise SnapshotProblem(f"shard {shard} is of another release ({problem})") from error


def read_rest(content: bytes | memoryview) -> Rest:
    """The inverse of `pickle.dumps(rest)`. No code that the content names runs.

    Raises pickle.UnpicklingError, and pydantic.ValidationError for other values.
    """
    found, classes = restricted_pickle.read(content, _RECORDS)
    if type(found) is not classes[_RECORDS[0]] or type(found.state) is not dict:
        raise pickle.UnpicklingError("it is no part of a snapshot")
    return TypeAdapter(Rest).validate_python(_plain(found.state))


_RECORDS = tuple(
    (kind.__module__, kind.__name__)
    for kind in (Rest, Manifest, DataIdentity, FileRecord, GenerationNumber)
)


def _plain(found: Any) -> Any:
    """The fields of stand-ins: the state of a record, the arguments of a tuple with names."""
    if isinstance(found, StandIn):
        return _plain(found.state["__dict__"]) if found.state else found.args
    if type(found) is dict:
        return {key: _plain(value) for key, value in found.items()}
    return found


class Shards:
    """Reads the shards of one snapshot: from memory on this node, else over the network."""

    def __init__(self, folder: Path, source: SnapshotSource) -> None:
        self._folder = folder
        self._source = source

    def read(self, shard: int, name: str) -> _Memory:
        """A file of a shard, verified. Raises SnapshotProblem."""
        content, expected = self._map(shard, name) or self._fetch(shard, name)
        found = SnapshotFile(len(content), xxhash.xxh3_64(content).hexdigest())
        if found != expected:
            what = f"{expected.size} bytes with checksum {expected.checksum}"
            raise SnapshotProblem(
                f"shard {shard} ({name}) is not {what}, but {found.size} with {found.checksum}"
            )
        return content

    def _map(self, shard: int, name: str) -> tuple[_Memory, SnapshotFile] | None:
        """The file in the memory of this rank's own agent; None when that does not hold it."""
        try:
            expected = read_description(self._folder, self._source.number, shard)[name]
            with held_file(self._folder, self._source.number, shard, name).open("rb") as file:
                return mmap.mmap(file.fileno(), expected.size, access=mmap.ACCESS_COPY), expected
        except (OSError, ValueError):
            return None

    def _fetch(self, shard: int, name: str) -> tuple[_Memory, SnapshotFile]:
        endpoint = self._source.places[shard]
        connection = http.client.HTTPConnection(endpoint, timeout=_FETCH_SECONDS)
        try:
            connection.request(
                "GET", path_on_agent(self._source.number, shard, name), headers=_authorization()
            )
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise SnapshotProblem(
                    f"shard {shard} is not at {endpoint} (HTTP {response.status})"
                )
            content = bytearray(int(response.headers["Content-Length"]))
            _fill(content, response)
        except (OSError, http.client.HTTPException) as error:
            raise SnapshotProblem(
                f"shard {shard} cannot be fetched from {endpoint}: {why_no_answer(error)}"
            ) from error
        finally:
            connection.close()
        return content, SnapshotFile(len(content), response.headers[CHECKSUM_HEADER])


def _authorization() -> dict[str, str]:
    """The header that the rank's agent would send; the rank has the same environment."""
    variable, default = (
        AgentEnvironment.variable("token_file"),
        AgentEnvironment.model_fields["token_file"].default,
    )
    token = Path(os.environ.get(variable, default)).read_text().strip()
    return {"Authorization": f"Bearer {token}"}


def _fill(content: bytearray, response: http.client.HTTPResponse) -> None:
    rest = memoryview(content)
    while rest:
        count = response.readinto(rest)
        if not count:
            raise http.client.IncompleteRead(b"", len(rest))
        rest = rest[count:]


def _read(
    item: ReadItem, planner: PlainLoadPlanner, contents: Contents, memory: dict[str, Tensor]
) -> None:
    """Load one item, as `FileSystemReader.read_data` does."""
    if item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, io.BytesIO(contents.objects[item.storage_index.fqn]))
        return
    stored = narrow_tensor_by_index(
        _stored(item.storage_index, contents, memory), item.storage_offsets, item.lengths
    )
    target = planner.resolve_tensor(item).detach()
    target.copy_(stored)
    planner.commit_tensor(item, target)


def _stored(index: MetadataIndex, contents: Contents, memory: dict[str, Tensor]) -> Tensor:
    """The tensor, as a view of the memory that holds its file."""
    described, place = contents.metadata.state_dict_metadata[index.fqn], contents.places[index]
    assert isinstance(described, TensorStorageMetadata), (
        "a plan reads as a tensor what was stored as one"
    )
    sizes = next(chunk.sizes for chunk in described.chunks if chunk.offsets == index.offset)
    frame = frame_of(described.properties.dtype, sizes)
    start = place.offset + len(frame.head)
    flat = memory[place.relative_path][start : start + frame.data_bytes]
    return flat.view(described.properties.dtype).view(sizes)
