"""Restoring: the newest whole checkpoint of the lineage, into a world of any size and strategy."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors

from regroup_trainer.agreement import from_all, lead
from regroup_trainer.checkpoint import catalog, lineage
from regroup_trainer.checkpoint.catalog import Candidate
from regroup_trainer.checkpoint.layout import Layout, Manifest, RunIdentity
from regroup_trainer.checkpoint.selection import Selection, nothing_whole, select
from regroup_trainer.checkpoint.storage import put_back, tensors_of
from regroup_trainer.contract import GenerationNumber, GenerationRecord, Rung, SkippedCheckpoint
from regroup_trainer.errors import ConfigurationError, StorageError
from regroup_trainer.snapshots.reader import MemoryReader
from regroup_trainer.state import Position, TrainState
from regroup_trainer.world import World


@dataclass(frozen=True)
class Choice:
    """What a generation starts from; the same on all ranks."""

    parent: GenerationNumber | None
    """The generation that it continues."""
    path: Path | None
    """None: from scratch, or from memory."""
    manifest: Manifest | None
    skipped: tuple[SkippedCheckpoint, ...]
    """Newer checkpoints that were not whole; where they are now is known to rank 0."""
    rung: Rung = "L2"
    """Where the state came from."""
    fallen: str = ""
    """Why not from memory, where that was chosen."""
    saved: Manifest | None = None
    """Of the newest checkpoint."""


@dataclass(frozen=True)
class Restorer:
    """Restores states of one generation."""

    layout: Layout
    record: GenerationRecord
    world: World
    identity: RunIdentity
    memory: MemoryReader | None = None
    """Of the memory snapshot that was chosen, on rung L1."""

    def restore(self, state: TrainState) -> Choice:
        """Load the memory snapshot, or a checkpoint, into `state`; then note on the volume that the generation begins.

        Raises StorageError, CheckpointError, ConfigurationError; FencedError when a newer generation has
        begun; c10d's errors when a peer is lost.
        """
        require_writable(self.layout, f"{self.record.number}-{self.world.rank}")
        selection = lead(lambda: select(self.layout, self.record))
        found = self._from_memory(state, selection)
        choice = self._from_volume(state, selection, found) if isinstance(found, str) else found
        lead(lambda: self._begin_with(choice))
        return choice

    def continues(self, generation: GenerationNumber, void: Collection[GenerationNumber]) -> bool:
        """Whether the state of this generation is the newest of the run, so that it may go on from memory.

        Generations that are `void` have committed nothing. All ranks call it. Raises StorageError; FencedError when a
        newer generation than this one has begun.
        """
        return lead(lambda: lineage.newest_committing(self.layout, self.record.number, void) == generation)

    def take_over(self, parent: GenerationNumber, step: int) -> None:
        """Note on the volume that the generation begins with the state after `step` of `parent`, which lives on.

        All ranks call it. Raises StorageError; FencedError when a newer generation has begun.
        """
        lead(lambda: self._begin(parent, step, from_checkpoint=False))

    def _from_memory(self, state: TrainState, selection: Selection) -> Choice | str:
        """Why not; empty when it was not chosen."""
        if self.memory is None or selection.without_memory:
            return selection.without_memory if self.memory else ""
        contents = self.memory.open()
        if isinstance(contents, str):
            return contents
        require_fitting(contents.manifest, self.identity)
        saved = next((found.manifest for found in selection.candidates if found.manifest), None)
        problem = self.memory.load(state, contents)
        return problem or Choice(selection.parent, None, contents.manifest, (), "L1", saved=saved)

    def _from_volume(self, state: TrainState, selection: Selection, fallen: str) -> Choice:
        choice = replace(self._choose(selection), fallen=fallen)
        if choice.manifest and choice.path:
            require_fitting(choice.manifest, self.identity)
            load(state, choice.path, choice.manifest)
        return choice

    def _choose(self, selection: Selection) -> Choice:
        """Walk back from the newest checkpoint that counts to the first whole one."""
        skipped: list[SkippedCheckpoint] = []
        for candidate in selection.candidates:
            problem = candidate.problem or self._verify(candidate)
            if not problem:
                manifest = candidate.manifest
                return Choice(selection.parent, candidate.path, manifest, tuple(skipped), saved=manifest)
            skipped.append(SkippedCheckpoint(path=str(self._set_aside(candidate)), why=problem))
        if not selection.scratch:
            raise nothing_whole(self.layout)
        return Choice(selection.parent, None, None, (), "start")

    def _verify(self, candidate: Candidate) -> str:
        """Compare the files with the manifest, each rank a part of them; empty when all are whole."""
        assert candidate.manifest is not None, "a candidate without a problem has a manifest"
        mine = sorted(candidate.manifest.files)[self.world.rank :: self.world.size]
        problems = from_all(catalog.verify(candidate.path, candidate.manifest, mine))
        return next((problem for problem in problems if problem), "")

    def _set_aside(self, candidate: Candidate) -> Path:
        """Where it is now: what cannot even be renamed is only passed over."""

        def act() -> Path:
            try:
                return catalog.set_aside(candidate.path, self.layout.corrupt(candidate.step, self.record.number))
            except OSError:
                return candidate.path

        return lead(act)

    def _begin_with(self, choice: Choice) -> None:
        if choice.manifest and choice.path:
            require_unchanged(self.layout, choice.manifest)
        self._begin(choice.parent, choice.manifest.step if choice.manifest else 0, choice.path is not None)

    def _begin(self, parent: GenerationNumber | None, step: int, from_checkpoint: bool) -> None:
        record = lineage.LineageRecord(
            generation=self.record.number,
            parent=parent,
            resumed_from_step=step,
            from_checkpoint=from_checkpoint,
            resume=self.record.desired.resume,
            data=self.identity.data,
        )
        try:
            lineage.begin(self.layout, record)  # first: who is fenced shall sweep nothing, who is swept be fenced
            catalog.sweep(self.layout, self.record.number)
        except OSError as error:
            raise StorageError(f"the job's directory {self.layout.directory} cannot be used: {error}") from error


def load(state: TrainState, path: Path, manifest: Manifest) -> None:
    """Fill `state` from a verified checkpoint, whatever world and strategy wrote it. All ranks call it."""
    tensors = tensors_of(state)
    load_tensors(tensors, storage_reader=FileSystemReader(path))
    put_back(state, tensors)
    state.position = Position(manifest.step, manifest.position, manifest.tokens)


def require_unchanged(layout: Layout, manifest: Manifest) -> None:
    """Raises StorageError when a checkpoint is not there any more, or another one is.

    Until this generation begins, an older one that still trains may delete or replace it.
    """
    if catalog.read_candidate(layout, manifest.step).manifest != manifest:
        raise StorageError(
            f"checkpoint {layout.published(manifest.step)} was deleted or replaced while it was read, by a generation "
            f"that is not over yet or by hand: nothing to do, the next attempt chooses from those there"
        )


def require_writable(layout: Layout, probe_name: str) -> None:
    """Make the folders and try to write into them. Raises StorageError."""
    for folder in (layout.checkpoints, layout.lineage, layout.history):
        probe = folder / f".probe-{probe_name}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise StorageError(
                f"checkpoint directory {folder} is not writable for user {os.getuid()} ({error.strerror}): make it "
                f"writable for that user (securityContext.fsGroup, or chown), or use another volume"
            ) from error


def require_fitting(manifest: Manifest, identity: RunIdentity) -> None:
    """Raises ConfigurationError, naming both values, when a checkpoint is of another run than this."""
    names = _ARGUMENTS if identity.own_program else _FIELDS
    by_itself = ", or give Session another directory if you started it yourself," if identity.own_program else ""
    way_out = f"change it back, or set resume.policy: Never{by_itself} to start from scratch"
    for name, now in identity.data.model_dump().items():
        then = getattr(manifest.data, name)
        if now != then:
            trained = f"with which checkpoint step {manifest.step} was trained"
            raise ConfigurationError(f"{names[name]}: {now} differs from {then}, {trained}: {way_out}")
    if manifest.model != identity.model:
        raise ConfigurationError(
            f"model: {identity.model} differs from {manifest.model} of checkpoint step {manifest.step}: {way_out}"
        )


_FIELDS = {
    "fingerprint": "data.paths: the fingerprint of the text",
    "samples": "data.heldOutPercent: the number of training samples",
    "seed": "training.seed",
    "global_batch_size": "training.globalBatchSize",
    "sequence_length": "training.sequenceLength",
}
"""Field of DataIdentity -> how the user of the built-in trainer knows it."""
_ARGUMENTS = {
    "fingerprint": "session.batches: dataset",
    "samples": "session.batches: the size of the dataset",
    "seed": "Session: seed",
    "global_batch_size": "session.batches: global_batch_size",
    "sequence_length": "session.batches: the length of a sample",
}
"""Field of DataIdentity -> how the author of a program knows it."""
