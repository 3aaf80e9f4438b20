"""One save, beside the training: copy, write, send what was written; rank 0 collects that and
publishes.

After the copy, ranks communicate only over the store. So a save can neither delay nor deadlock a
step.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from regroup_trainer.checkpoint import catalog, shard_file
from regroup_trainer.checkpoint.description import object_file, place_objects, tensor_file
from regroup_trainer.checkpoint.layout import FileRecord, Layout, Manifest, RunIdentity
from regroup_trainer.checkpoint.parts import SavedPart, SavedParts
from regroup_trainer.checkpoint.publish import prune, publish
from regroup_trainer.checkpoint.staging import Snapshot
from regroup_trainer.checkpoint.volume_calls import describe
from regroup_trainer.errors import GenerationOverError, SaveError
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.config import CheckpointPolicy
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.step.state import Position
from regroup_trainer.system import durable
from regroup_trainer.system.background import Background

_METADATA = ".metadata"


@dataclass(frozen=True)
class Saver:
    """What the saves of a generation have in common."""

    layout: Layout
    generation: GenerationNumber
    group: GenerationGroup
    identity: RunIdentity
    sync_history: Callable[[], None]
    """Called on rank 0, in another thread, before publishing: flushes the steps up to the
    checkpoint. Raises OSError.
    """

    def manifest(self, position: Position, written: dict[str, FileRecord]) -> Manifest:
        """The manifest of a checkpoint that is about to be published."""
        return Manifest(
            step=position.step,
            position=position.samples,
            tokens=position.tokens,
            generation=self.generation,
            world_size=self.group.size,
            strategy=self.identity.strategy,
            model=self.identity.model,
            data=self.identity.data,
            torch=torch.__version__,
            time=time.time(),
            files=written,
        )


@dataclass(frozen=True)
class Published:
    """A save that succeeded."""

    manifest: Manifest
    seconds: float
    """From the decision to the rename."""
    prune_problem: str
    """Why old checkpoints could not be deleted; empty when they could."""


class Save:
    """A save under way; it begins when the object is made. Rank 0's `result` knows how it ended."""

    def __init__(
        self,
        saver: Saver,
        snapshot: Snapshot,
        parts: SavedParts,
        number: int,
        position: Position,
        policy: CheckpointPolicy,
    ) -> None:
        self._saver = saver
        self._snapshot = snapshot
        self._parts = parts
        self._number = number
        self._policy = policy
        self._start = time.monotonic()
        self._given_up = threading.Event()
        self.position = position
        self.directory = saver.layout.temporary(position.step, saver.generation)
        objects = snapshot.begin()
        self._work = Background(lambda: self._run(objects))

    @property
    def done(self) -> bool:
        """Whether this rank's part has ended."""
        return self._work.done

    def wait_for_copy(self) -> None:
        """Wait until the state may change."""
        self._snapshot.wait()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, at most so long; returns whether it has come."""
        return self._work.wait(seconds)

    def result(self) -> Published | None:
        """What was published, on rank 0; None elsewhere.

        Raises SaveError and FencedError on rank 0; c10d's errors when the store is gone.
        """
        return self._work.result()

    def give_up(self, grace_seconds: float) -> None:
        """End with the generation. A save that all ranks have written is still published; any other
        is deleted.
        """
        self._given_up.set()
        self._work.wait(grace_seconds)

    def _run(self, objects: dict[str, bytes]) -> Published | None:
        self._snapshot.copy()
        self._parts.send(self._number, self._write(objects))
        if not self._saver.group.is_rank0:
            return None
        parts = self._parts.collect(self._number, self._given_up)
        try:
            return self._publish(parts)
        except (SaveError, GenerationOverError):
            shutil.rmtree(
                self.directory, ignore_errors=True
            )  # what stays is swept by the next generation
            raise

    def _write(self, objects: dict[str, bytes]) -> SavedPart:
        rank, image = self._saver.group.rank, self._snapshot.image
        contents = {}
        if image.size:
            contents[tensor_file(rank)] = (image.content(), image.size)
        if objects:
            joined = b"".join(objects.values())
            contents[object_file(rank)] = (memoryview(joined), len(joined))
        written: dict[str, FileRecord] = {}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for name, (content, size) in contents.items():
                written[name] = shard_file.write(self.directory / name, content, size)
        except OSError as error:
            for name in written:
                (self.directory / name).unlink(missing_ok=True)
            return SavedPart(rank=rank, problem=describe(error))
        return SavedPart(rank=rank, files=written, objects=place_objects(objects))

    def _publish(self, parts: list[SavedPart] | None) -> Published:
        if parts is None:
            raise GenerationOverError(
                "the generation ended before all ranks had written their part"
            )
        for part in parts:
            if part.problem:
                raise SaveError("write", f"rank {part.rank}: {part.problem}")
        try:
            written = {name: record for part in parts for name, record in part.files.items()}
            written[_METADATA] = self._write_metadata(parts)
            manifest = self._saver.manifest(self.position, written)
            self._saver.sync_history()
            publish(self._saver.layout, manifest, self.directory)
        except OSError as error:
            raise SaveError("publish", describe(error)) from error
        return Published(manifest, time.monotonic() - self._start, self._prune())

    def _write_metadata(self, parts: list[SavedPart]) -> FileRecord:
        description, path = self._snapshot.plan.description, self.directory / _METADATA
        assert description is not None, "rank 0 publishes, and has it"
        path.write_bytes(description.content(parts))
        durable.sync(path)
        return catalog.file_record(path)

    def _prune(self) -> str:
        try:
            prune(self._saver.layout, self._saver.generation, self._policy)
        except OSError as error:
            return describe(error)
        return ""
