"""Restoring from a memory snapshot: each rank reads the shards that it needs, here or from the agents that hold them.

All is verified on all ranks before anything is changed: what is not whole leaves the state to a checkpoint.
"""

from __future__ import annotations

import http.client
import io
import mmap
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
import xxhash
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from regroup_trainer.agreement import from_all, lead
from regroup_trainer.checkpoint.description import Places, tensor_file
from regroup_trainer.checkpoint.frame import frame_of
from regroup_trainer.checkpoint.layout import Manifest
from regroup_trainer.checkpoint.storage import put_back, tensors_of
from regroup_trainer.contract import Assignment, SnapshotFile, SnapshotSource
from regroup_trainer.environment import AgentEnvironment
from regroup_trainer.snapshots.places import CHECKSUM_HEADER, REST, TENSORS, held_file, path_on_agent, read_description
from regroup_trainer.snapshots.writer import Rest
from regroup_trainer.state import Position, TrainState

_Memory = mmap.mmap | bytearray
_FETCH_SECONDS = 10.0
"""An agent that is silent for so long does not give its shard."""


class SnapshotProblem(Exception):
    """A shard cannot be had, or is not whole."""


@dataclass(frozen=True)
class Contents:
    """What rank 0 reads and tells all."""

    manifest: Manifest
    metadata: Metadata
    places: Places
    objects: dict[str, bytes]


class MemoryReader:
    """Reads one snapshot. All ranks call its methods."""

    def __init__(self, assignment: Assignment, source: SnapshotSource) -> None:
        self._shards = Shards(Path(assignment.snapshots), source)
        self._source = source

    def open(self) -> Contents | str:
        """What the snapshot consists of; why it cannot be used, alike on all ranks."""
        return lead(self._open)

    def load(self, state: TrainState, contents: Contents) -> str:
        """Fill `state`, whatever world took the snapshot; else why it cannot be used, and `state` is as it was."""
        tensors = tensors_of(state)
        planner = DefaultLoadPlanner()
        planner.set_up_planner(tensors, contents.metadata)
        plan = planner.create_local_plan()
        memory, problem = self._fetch(plan, contents)
        problems = [f"rank {rank}: {why}" for rank, why in enumerate(from_all(problem)) if why]
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
            metadata, places, owners = pickle.loads(first.description)
            rests = [first, *(self._rest(shard) for shard in sorted({*owners.values()} - {0}))]
        except SnapshotProblem as problem:
            return str(problem)
        objects = {name: content for rest in rests for name, content in rest.objects.items()}
        return Contents(first.manifest, metadata, places, objects)

    def _rest(self, shard: int) -> Rest:
        # Written by a rank of this job, and passed on by agents that know its token.
        return cast(Rest, pickle.loads(self._shards.read(shard, REST)))

    def _fetch(self, plan: LoadPlan, contents: Contents) -> tuple[dict[str, Tensor], str]:
        """The files of tensors that the plan reads, by name."""
        wanted = {contents.places[i.storage_index].relative_path for i in plan.items if i.type != LoadItemType.BYTE_IO}
        names = {tensor_file(shard): shard for shard in range(self._source.number.shards)}
        memory = {}
        try:
            for name in sorted(wanted):
                memory[name] = torch.frombuffer(self._shards.read(names[name], TENSORS), dtype=torch.uint8)
        except SnapshotProblem as problem:
            return {}, str(problem)
        return memory, ""


class Shards:
    """The shards of one snapshot."""

    def __init__(self, folder: Path, source: SnapshotSource) -> None:
        self._folder = folder
        self._source = source

    def read(self, shard: int, name: str) -> _Memory:
        """A file of a shard, verified. Raises SnapshotProblem."""
        content, expected = self._map(shard, name) or self._fetch(shard, name)
        found = SnapshotFile(len(content), xxhash.xxh3_64(content).hexdigest())
        if found != expected:
            what = f"{expected.size} bytes with checksum {expected.checksum}"
            raise SnapshotProblem(f"shard {shard} ({name}) is not {what}, but {found.size} with {found.checksum}")
        return content

    def _map(self, shard: int, name: str) -> tuple[_Memory, SnapshotFile] | None:
        """As this rank's own agent holds it; None when it does not."""
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
            connection.request("GET", path_on_agent(self._source.number, shard, name), headers=_authorization())
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise SnapshotProblem(f"shard {shard} is not at {endpoint} (HTTP {response.status})")
            content = bytearray(int(response.headers["Content-Length"]))
            _fill(content, response)
        except (OSError, http.client.HTTPException) as error:
            raise SnapshotProblem(f"shard {shard} cannot be fetched from {endpoint}: {error!r}") from error
        finally:
            connection.close()
        return content, SnapshotFile(len(content), response.headers[CHECKSUM_HEADER])


def _authorization() -> dict[str, str]:
    """As its agent would authorise itself: its environment is this process's too."""
    variable, default = AgentEnvironment.variable("token_file"), AgentEnvironment.model_fields["token_file"].default
    token = Path(os.environ.get(variable, default)).read_text().strip()
    return {"Authorization": f"Bearer {token}"}


def _fill(content: bytearray, response: http.client.HTTPResponse) -> None:
    rest = memoryview(content)
    while rest:
        count = response.readinto(rest)
        if not count:
            raise http.client.IncompleteRead(b"", len(rest))
        rest = rest[count:]


def _read(item: ReadItem, planner: DefaultLoadPlanner, contents: Contents, memory: dict[str, Tensor]) -> None:
    """As `FileSystemReader.read_data` does for one item."""
    if item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, io.BytesIO(contents.objects[item.storage_index.fqn]))
        return
    stored = narrow_tensor_by_index(_stored(item.storage_index, contents, memory), item.storage_offsets, item.lengths)
    target = planner.resolve_tensor(item).detach()
    target.copy_(stored)
    planner.commit_tensor(item, target)


def _stored(index: MetadataIndex, contents: Contents, memory: dict[str, Tensor]) -> Tensor:
    """The tensor, where it lies in its file."""
    described, place = contents.metadata.state_dict_metadata[index.fqn], contents.places[index]
    assert isinstance(described, TensorStorageMetadata), "a plan reads as a tensor what was stored as one"
    sizes = next(chunk.sizes for chunk in described.chunks if chunk.offsets == index.offset)
    frame = frame_of(described.properties.dtype, sizes)
    start = place.offset + len(frame.head)
    flat = memory[place.relative_path][start : start + frame.data_bytes]
    return flat.view(described.properties.dtype).view(sizes)
