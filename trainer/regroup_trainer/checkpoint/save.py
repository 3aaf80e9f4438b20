"""Saving: all ranks write, rank 0 publishes; after any failure all ranks know it and nothing half-written is left."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from regroup_trainer import durable
from regroup_trainer.agreement import from_all, lead
from regroup_trainer.checkpoint import catalog, lineage
from regroup_trainer.checkpoint.layout import MANIFEST, FileRecord, Layout, Manifest, RunIdentity
from regroup_trainer.checkpoint.storage import tensors_of
from regroup_trainer.config import CheckpointPolicy
from regroup_trainer.contract import GenerationNumber
from regroup_trainer.errors import FencedError, SaveError, Stage
from regroup_trainer.state import TrainState
from regroup_trainer.world import World

_METADATA = ".metadata"


@dataclass(frozen=True)
class Saver:
    """Saves states of one generation."""

    layout: Layout
    generation: GenerationNumber
    world: World
    identity: RunIdentity
    settle: Callable[[], None]
    """Called on rank 0 before publishing: makes durable what the checkpoint relies on. Raises OSError."""

    def save(self, state: TrainState) -> Manifest:
        """Write and publish; returns what was published, on all ranks.

        Raises SaveError on all ranks when a rank cannot write or rank 0 cannot publish; FencedError when a newer
        generation has begun; c10d's errors when a peer is lost.
        """
        directory = self.layout.temporary(state.position.step, self.generation)
        try:
            self._prepare(directory)
            files = self._write(state, directory)
            return self._publish(state, directory, files)
        except SaveError:
            if self.world.leads:  # free the space; whatever stays is swept by the next generation
                shutil.rmtree(directory, ignore_errors=True)
            raise

    def _prepare(self, directory: Path) -> None:
        def make() -> None:
            if directory.exists():
                shutil.rmtree(directory)
            directory.mkdir(parents=True)

        _agree("write", _attempt(make) if self.world.leads else "")

    def _write(self, state: TrainState, directory: Path) -> dict[str, FileRecord]:
        writer = FileSystemWriter(directory, overwrite=True)
        try:
            save_tensors(tensors_of(state), storage_writer=writer)
        except CheckpointException as error:  # raised by all ranks
            rank, (cause, _) = min(error.failures.items())
            # Torch's writer reports a full disk as an unexpected position: say how much room there is.
            folder = self.layout.checkpoints
            free = shutil.disk_usage(folder).free
            raise SaveError("write", f"rank {rank}: {cause} ({free} bytes are free in {folder})") from error
        return self._measure(directory)

    def _measure(self, directory: Path) -> dict[str, FileRecord]:
        """Sync and checksum: each rank its own files, so that it costs the same for any world."""
        mine = [*directory.glob(f"__{self.world.rank}_*"), *([directory / _METADATA] if self.world.leads else [])]
        found: dict[str, FileRecord] = {}

        def measure() -> None:
            for path in mine:
                durable.sync(path)
                found[path.name] = catalog.file_record(path)

        _agree("write", _attempt(measure))
        return {name: record for part in from_all(found) for name, record in part.items()}

    def _publish(self, state: TrainState, directory: Path, files: dict[str, FileRecord]) -> Manifest:
        manifest = Manifest(
            step=state.position.step,
            position=state.position.samples,
            tokens=state.position.tokens,
            generation=self.generation,
            world_size=self.world.size,
            strategy=self.identity.strategy,
            model=self.identity.model,
            data=self.identity.data,
            torch=torch.__version__,
            time=time.time(),
            files=files,
        )
        lead(lambda: self._publish_here(manifest, directory))
        return manifest

    def _publish_here(self, manifest: Manifest, directory: Path) -> None:
        try:
            self.settle()
            publish(self.layout, manifest, directory)
        except FencedError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        except OSError as error:
            raise SaveError("publish", _describe(error)) from error


def publish(layout: Layout, manifest: Manifest, directory: Path) -> None:
    """Give a completely written directory its final name, durably.

    If a whole checkpoint of this step and lineage is there already, the new one is dropped; one of another line is set
    aside. Raises FencedError when a newer generation has begun, OSError.
    """
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    durable.sync(directory / MANIFEST)
    durable.sync(directory)
    lineage.require_newest(layout, manifest.generation)
    target = layout.published(manifest.step)
    if target.exists():
        if _is_ours(layout, manifest):
            shutil.rmtree(directory)
            return
        catalog.set_aside(target, layout.stale(manifest.step, manifest.generation))
    durable.rename(directory, target)
    _point_latest(layout, target)


def prune(layout: Layout, generation: GenerationNumber, policy: CheckpointPolicy) -> None:
    """Delete the checkpoints of this lineage that the policy does not keep. Raises OSError."""
    links = _lineage(layout, generation)
    ours = [found.step for found in catalog.published(layout) if found.manifest and catalog.on_lineage(found, links)]
    for step in catalog.removable(ours, policy.keep_last, policy.keep_every_steps):
        catalog.remove(layout, step)


def _is_ours(layout: Layout, manifest: Manifest) -> bool:
    there = catalog.read_candidate(layout, manifest.step)
    if there.manifest is None or not catalog.on_lineage(there, _lineage(layout, manifest.generation)):
        return False
    return not catalog.verify(there.path, there.manifest, there.manifest.files)


def _lineage(layout: Layout, generation: GenerationNumber) -> tuple[lineage.LineageRecord, ...]:
    return lineage.chain(lineage.read(layout), generation)


def _point_latest(layout: Layout, target: Path) -> None:
    """`latest` is for people; a failure must not fail a save that has been published."""
    beside = layout.latest.with_name(".latest.new")
    with contextlib.suppress(OSError):
        beside.unlink(missing_ok=True)
        beside.symlink_to(target.name)
        durable.rename(beside, layout.latest)


def _attempt(action: Callable[[], None]) -> str:
    """Empty when it succeeds, else what went wrong with the storage."""
    try:
        action()
    except OSError as error:
        return _describe(error)
    return ""


def _agree(stage: Stage, problem: str) -> None:
    """Raises SaveError on all ranks when any of them has a problem."""
    for rank, found in enumerate(from_all(problem)):
        if found:
            raise SaveError(stage, f"rank {rank}: {found}")


def _describe(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
