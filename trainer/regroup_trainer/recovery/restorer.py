"""Restoring a state from a memory snapshot, or from the newest whole checkpoint of the lineage.

World size and strategy may differ from those that wrote it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from regroup_trainer.checkpoint import catalog, lineage
from regroup_trainer.checkpoint.catalog import Candidate
from regroup_trainer.checkpoint.layout import Head, Layout, Manifest, RunIdentity
from regroup_trainer.checkpoint.load import (
    exchange_reading,
    is_in_doubt,
    read,
    require_fitting,
    require_unchanged,
    require_writable,
)
from regroup_trainer.checkpoint.selection import Selection, nothing_whole, select
from regroup_trainer.checkpoint.storage import put_back, tensors_of
from regroup_trainer.errors import ProgramRestartError
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord, RestoredFrom
from regroup_trainer.protocol.rank_messages import SkippedCheckpoint
from regroup_trainer.recovery.inventory import Agreement
from regroup_trainer.recovery.step_log import StepLog, read_lines
from regroup_trainer.recovery.volume_access import VolumeAccess
from regroup_trainer.snapshots.snapshot_reader import MemoryReader
from regroup_trainer.step.agreement import all_gather
from regroup_trainer.step.state import Position, TrainState


@dataclass(frozen=True)
class Choice:
    """What was restored; the same on all ranks."""

    parent: GenerationNumber | None
    """The generation that it continues."""
    path: Path | None
    """The checkpoint; None: from scratch, or from a memory snapshot."""
    manifest: Manifest | None
    skipped: tuple[SkippedCheckpoint, ...]
    """Newer checkpoints that were not whole; on rank 0 with their present paths."""
    restored_from: RestoredFrom = "Checkpoint"
    fallback_reason: str = ""
    """Why the memory snapshot that was chosen could not be used."""
    saved: Head | None = None
    """Manifest of the newest checkpoint on the volume."""
    log: StepLog = field(default_factory=StepLog)
    """The newest steps up to a memory snapshot, which the volume may lack."""


@dataclass(frozen=True)
class Restorer:
    """Restores the state of one generation, and records on the volume that it begins."""

    layout: Layout
    record: GenerationRecord
    group: GenerationGroup
    identity: RunIdentity
    volume: VolumeAccess
    memory: MemoryReader | None = None
    """Reads the memory snapshot that the coordinator chose, if it chose one."""

    def restore(self, state: TrainState) -> Choice:
        """Load the memory snapshot or a checkpoint into `state`, then record on the volume that the
        generation begins. All ranks call it.

        Raises StorageError, CheckpointError, ConfigurationError; FencedError when a newer
        generation has begun; c10d's errors when a peer is lost.
        """
        if self.memory is None:  # else the state may come without a write to a full volume
            probe = f"{self.record.number}-{self.group.rank}"
            self.volume.on_every_rank(lambda: require_writable(self.layout, probe))
        selection = self.volume.on_rank0(lambda: select(self.layout, self.record))
        found = self._from_memory(state, selection)
        choice = self._from_volume(state, selection, found) if isinstance(found, str) else found
        self.volume.on_rank0(lambda: self._begin_with(choice))
        return choice

    def is_newest(self, agreement: Agreement) -> bool:
        """Whether the live state that the ranks agreed on is the newest of the run. All ranks call
        it.

        Raises StorageError; FencedError when a newer generation than this one has begun.
        """
        return self.volume.on_rank0(lambda: self._is_newest(agreement))

    def begin_from_live(self, agreement: Agreement) -> None:
        """Record on the volume that the generation begins with the live state. All ranks call it.

        Raises StorageError; FencedError when a newer generation has begun.
        """
        self.volume.on_rank0(
            lambda: self._begin(agreement.generation, agreement.step, from_checkpoint=False)
        )

    def _is_newest(self, agreement: Agreement) -> bool:
        lineage.require_begun(self.layout, agreement.generation)
        newest = lineage.newest_committing(self.layout, self.record.number, agreement.unused)
        return newest == agreement.generation

    def _from_memory(self, state: TrainState, selection: Selection) -> Choice | str:
        """The choice, or why the snapshot is not used; empty where none was chosen."""
        if self.memory is None or selection.without_memory:
            return selection.without_memory if self.memory else ""
        contents = self.memory.open()
        if isinstance(contents, str):
            return contents
        # The samples of another process would be noted on the volume, which may be full.
        require_fitting(contents.manifest, self.identity)
        saved = next((found.manifest for found in selection.candidates if found.manifest), None)
        problem = self.memory.load(state, contents)
        return problem or Choice(
            selection.parent,
            None,
            contents.manifest,
            (),
            "Snapshot",
            saved=saved,
            log=read_lines(contents.history),
        )

    def _from_volume(self, state: TrainState, selection: Selection, fallback_reason: str) -> Choice:
        choice = replace(self._choose(selection), fallback_reason=fallback_reason)
        if choice.manifest and choice.path:
            self._require_fitting(choice.manifest)
            self._load(state, choice.path, choice.manifest)
        return choice

    def _require_fitting(self, manifest: Manifest) -> None:
        """Raises ConfigurationError when the state is of another run; ProgramRestartError where
        only another process can tell. All ranks call it.

        A program without an agent would not be started again: it goes on, and says that its samples
        vary.
        """
        read_before = ""
        if self.volume.channel.lasting and is_in_doubt(manifest, self.identity):
            read_before = self.volume.on_rank0(
                lambda: exchange_reading(self.layout, manifest, self.identity)
            )
            if not read_before:
                raise ProgramRestartError(
                    "the samples of the data set are not those of the checkpoint: the program "
                    "starts again, to see whether they differ in each of its processes"
                )
        require_fitting(manifest, self.identity, read_before)

    def _load(self, state: TrainState, path: Path, manifest: Manifest) -> None:
        """Fill `state` from a verified checkpoint."""
        tensors, device = tensors_of(state), self.group.device

        def act() -> None:  # in a thread, which begins with the first GPU
            with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
                read(tensors, path)

        self.volume.on_every_rank(act)
        put_back(state, tensors)
        state.position = Position(manifest.step, manifest.position, manifest.tokens)

    def _choose(self, selection: Selection) -> Choice:
        """The newest whole checkpoint of the lineage; damaged ones are set aside."""
        skipped: list[SkippedCheckpoint] = []
        for glimpsed in selection.candidates:
            candidate = self._read(glimpsed.step)
            problem = candidate.problem or self._verify(candidate)
            if not problem:
                manifest = candidate.manifest
                return Choice(
                    selection.parent, candidate.path, manifest, tuple(skipped), saved=manifest
                )
            skipped.append(SkippedCheckpoint(path=str(self._set_aside(candidate)), why=problem))
        if not selection.scratch:
            raise nothing_whole(self.layout)
        return Choice(selection.parent, None, None, (), "Nothing")

    def _read(self, step: int) -> Candidate[Manifest]:
        return self.volume.on_rank0(lambda: catalog.read_candidate(self.layout, step))

    def _verify(self, candidate: Candidate[Manifest]) -> str:
        """Compare the files with the manifest, each rank some of them; empty when all are whole."""
        assert candidate.manifest is not None, "a candidate without a problem has a manifest"
        mine = sorted(candidate.manifest.files)[self.group.rank :: self.group.size]
        manifest = candidate.manifest
        problem = self.volume.on_every_rank(lambda: catalog.verify(candidate.path, manifest, mine))
        return next((found for found in all_gather(problem) if found), "")

    def _set_aside(self, candidate: Candidate[Manifest]) -> Path:
        """Rename a damaged checkpoint; returns its path, the old one where it cannot be renamed."""

        def act() -> Path:
            try:
                return catalog.set_aside(
                    candidate.path, self.layout.corrupt(candidate.step, self.record.number)
                )
            except OSError:
                return candidate.path

        return self.volume.on_rank0(act)

    def _begin_with(self, choice: Choice) -> None:
        if choice.manifest and choice.path:
            require_unchanged(self.layout, choice.manifest)
        self._begin(
            choice.parent, choice.manifest.step if choice.manifest else 0, choice.path is not None
        )

    def _begin(self, parent: GenerationNumber | None, step: int, from_checkpoint: bool) -> None:
        record = lineage.LineageRecord(
            generation=self.record.number,
            parent=parent,
            resumed_from_step=step,
            from_checkpoint=from_checkpoint,
            resume=self.record.desired.resume,
            data=self.identity.data,
        )
        # Begin first: a generation that is fenced must sweep nothing.
        lineage.begin(self.layout, record)
        with contextlib.suppress(OSError):  # what stays is swept by the next generation
            catalog.sweep(self.layout, self.record.number)
