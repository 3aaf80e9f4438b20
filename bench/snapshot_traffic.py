"""What a worker sends its neighbour for memory snapshots, by the number of ranks.

    make bench NAME=snapshot_traffic [ARGS=--quick]

A model of eight billion parameters is trained by FSDP with Adam in fp32, by workers of eight ranks.
Every 10th step, each worker sends the shards of its ranks to one neighbour.

- `worker_mb`: a worker's shards of one snapshot; `step_mb`: the mean over the steps.
- `copies`: the most workers whose copies one worker gets.
- `wire_ratio`: what the agent's sender writes to its connection for a shard of 8 MB, by its bytes.
- `description_mb`: what the worker of rank 0 sends too: where each piece of each tensor lies. It is
  pickled for 3 tensors and multiplied.
- `neighbours_ms`: the time of the processor to find the neighbours, once in a generation.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
import xxhash
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from bench.harness import Plan, Values, command
from regroup_trainer.agent.replication import SnapshotSender
from regroup_trainer.agent.snapshot_store import SnapshotStore
from regroup_trainer.checkpoint.description import Description, tensor_file
from regroup_trainer.protocol.generation import GenerationNumber, MemberRecord, SnapshotNumber
from regroup_trainer.protocol.rank_messages import SnapshotFile, SnapshotTaken
from regroup_trainer.snapshots.neighbours import neighbours
from regroup_trainer.snapshots.places import REST, TENSORS, slot_file
from tests.support.generations import make_generation, make_places

RANKS_OF_WORKER = 8
PARAMETERS, TENSORS_OF_MODEL = 8.03e9, 291
"""Llama 3 8B."""
BYTES_OF_PARAMETER = 12
"""The parameter and Adam's two moments, which are tensors of the state too."""
STEPS_BETWEEN = 10
SHARD = bytes(8 << 20)
UNITS = {
    "worker_mb": "MB", "step_mb": "MB", "copies": "workers", "wire_ratio": "ratio",
    "description_mb": "MB", "neighbours_ms": "ms",
}  # fmt: skip
_GENERATION = GenerationNumber(1, 1)
_PIECES = 3
_LAST_CHUNK = b"0\r\n\r\n"


def plan(quick: bool) -> Plan:
    """Four numbers of ranks; a quick run has 16."""
    sizes = ("16",) if quick else ("16", "128", "1024", "8192")
    return Plan("snapshot_traffic", sizes, ("regroup",), UNITS, 1)


def measure(case: str, _subject: str) -> Values:
    """So many ranks, a node for each worker."""
    ranks = int(case)
    nodes = [f"n{n}" for n in range(ranks // RANKS_OF_WORKER)]
    places = make_places(nodes, RANKS_OF_WORKER)
    began = time.process_time()
    targets = neighbours(places)
    spent = time.process_time() - began
    shards = PARAMETERS * BYTES_OF_PARAMETER / ranks * RANKS_OF_WORKER / 1e6
    tensors = BYTES_OF_PARAMETER // 4 * TENSORS_OF_MODEL
    return {
        "worker_mb": shards,
        "step_mb": shards / STEPS_BETWEEN,
        "copies": max(Counter(place.member for place in targets.values()).values()),
        "wire_ratio": asyncio.run(sent_bytes(places[:2])) / len(SHARD),
        "description_mb": description_bytes(ranks) / _PIECES * tensors / 1e6,
        "neighbours_ms": spent * 1e3,
    }


async def sent_bytes(places: tuple[MemberRecord, ...]) -> int:
    """What the first of two members writes to its connection for one shard."""
    counted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = end = b""
        total = 0
        while not end.endswith(_LAST_CHUNK):
            received = await reader.read(1 << 20)
            total, end = total + len(received), (end + received)[-len(_LAST_CHUNK) :]
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        counted.set_result(total)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    members = tuple(one.model_copy(update={"endpoint": f"127.0.0.1:{port}"}) for one in places)
    record = make_generation(1, 1).model_copy(update={"members": members})
    with tempfile.TemporaryDirectory() as folder:
        store = SnapshotStore(Path(folder) / "own", ranks=1)
        sender = SnapshotSender(store, "token", lambda _number, _why: None)
        number = write_shard(store)
        sender.begin(record, members[0].member)
        sender.send(number, 0)
        total = await counted
        sender.stop()
    server.close()
    return total


def write_shard(store: SnapshotStore) -> SnapshotNumber:
    """The shard of a rank that has taken its part of a snapshot."""
    number, files = SnapshotNumber(10, _GENERATION, 2), {}
    for name, content in ((TENSORS, SHARD), (REST, b"rest")):
        slot_file(store.folder, 0, 0, name).write_bytes(content)
        files[name] = SnapshotFile(len(content), xxhash.xxh3_64(content).hexdigest())
    taken = SnapshotTaken(
        generation=_GENERATION, rank=0, number=number, shard=0, slot=0, files=files
    )
    store.take(taken, 0)
    return number


def description_bytes(ranks: int) -> int:
    """The description of a few tensors of which each rank stores a piece."""
    names = [f"optimizer.state.layers.{n}.feed_forward.w1.weight.exp_avg" for n in range(_PIECES)]
    tensors: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {
        name: TensorStorageMetadata(
            TensorProperties(), torch.Size((512 * ranks, 4096)), chunks_of(ranks)
        )
        for name in names
    }
    places = [
        {
            MetadataIndex(name, torch.Size((rank * 512, 0))): _StorageInfo(
                tensor_file(rank), rank * 512, 512 * 4096 * 4
            )
            for name in names
        }
        for rank in range(ranks)
    ]
    return len(Description(Metadata(tensors), places, []).pickled())


def chunks_of(ranks: int) -> list[ChunkStorageMetadata]:
    """The piece of each rank of a tensor."""
    size = torch.Size((512, 4096))
    return [ChunkStorageMetadata(torch.Size((rank * 512, 0)), size) for rank in range(ranks)]


main = command(plan, measure)

if __name__ == "__main__":
    main()
