"""A rank's part in memory snapshots: a copy of its part of the state, beside the training, into its agent's memory.

Every few steps all ranks copy together, but never before the snapshot before is complete everywhere. Each has two slots
of memory and writes them in turn, so that a whole snapshot is never overwritten by one that may not become whole.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash
from torch.optim import Optimizer

from regroup_trainer.agreement import from_all
from regroup_trainer.channel import Sender
from regroup_trainer.checkpoint.background import Background
from regroup_trainer.checkpoint.image import Image, allocated, size_of
from regroup_trainer.checkpoint.layout import Manifest
from regroup_trainer.checkpoint.plan import StatePlan
from regroup_trainer.checkpoint.save import Saver, describe
from regroup_trainer.checkpoint.snapshot import Snapshot
from regroup_trainer.contract import Assignment, SnapshotFile, SnapshotNumber, SnapshotsOff, SnapshotTaken
from regroup_trainer.memory_limit import available_bytes
from regroup_trainer.snapshots.neighbours import ranks_kept, writers
from regroup_trainer.snapshots.places import REST, SLOTS, TENSORS, CompletePage, slot_file
from regroup_trainer.snapshots.schedule import SnapshotTimer
from regroup_trainer.state import TrainState

_GRACE_SECONDS = 2.0
"""How long a copy may take to end when its generation is over."""


@dataclass(frozen=True)
class Rest:
    """What a shard holds beside tensors."""

    manifest: Manifest
    description: bytes
    """Of the whole snapshot, with its first shard; empty elsewhere. See `Description.pickled`."""
    objects: dict[str, bytes]


class MemorySnapshots:
    """Snapshots of `state` in one generation; `close` it at the end. `plans` gives the plan that fits the state now.

    All ranks call its methods after the same steps, but for `due`. The optimizer itself waits for the copy of the state
    before it changes it. Where there is no memory for them, it says so once and does nothing.
    """

    def __init__(
        self, assignment: Assignment, saver: Saver, state: TrainState, plans: Callable[[], StatePlan], channel: Sender
    ) -> None:
        record = assignment.record
        wanted = record.desired.checkpoint.memory_snapshot_steps
        self._on = bool(assignment.snapshots) and wanted != 0
        self._timer = SnapshotTimer(wanted, state.position.step)
        self._assignment = assignment
        self._saver = saver
        self._state = state
        self._plans = plans
        self._channel = channel
        self._agreed: StatePlan | None = None
        """The plan of all ranks."""
        self._slot = assignment.free_slot
        self._slots: dict[int, Background[Snapshot]] = {}
        self._copying: Snapshot | None = None
        self._work: Background[None] | None = None
        self._begun = state.position.step
        self._incomplete = False
        """Whether the last one that was begun may not be whole everywhere yet."""
        self._page = CompletePage(Path(assignment.snapshots)) if self._on else None
        self._hook = state.optimizer.register_step_pre_hook(self._before_update)

    def due(self) -> bool:
        """Whether to copy after the step that is about to run. Rank 0 asks; all are told."""
        return self._on and not self._incomplete and self._timer.due(self._state.position.step + 1)

    def after_step(self) -> None:
        """Call after every step: prepares the first copy, and the other slot once it is free."""
        if not self._on:
            return
        if self._agreed is None:
            self._adopt(self._plans())
        if self._incomplete and self._page and self._page.step >= self._begun:
            self._incomplete = False
            self._prepare(self._slot)

    def begin(self) -> None:
        """Copy the present state beside the following steps."""
        if self._on and (plan := self._plans()) is not self._agreed:
            self._adopt(plan)
        if not self._on:
            return
        self._begun, self._incomplete = self._state.position.step, True
        self._timer.restart(self._begun)
        if self._plan is None:
            return
        self._prepare(self._slot)
        slot, self._slot = self._slot, (self._slot + 1) % SLOTS
        self._copying = snapshot = self._slots[slot].result()
        rest = self._rest(snapshot.begin())
        self._work = Background(lambda: self._run(snapshot, slot, rest))

    def close(self, wait: bool) -> None:
        """The generation is over: what is being copied may still become whole.

        A process that lives on does not wait: what it tells later is of another generation, and heard no more.
        """
        self._hook.remove()
        if self._work is not None and wait:
            self._work.wait(_GRACE_SECONDS)

    def _adopt(self, plan: StatePlan) -> None:
        """All ranks agree on what they copy from now on, and whether there is memory for it."""
        self._agreed = plan
        self._plan = (StatePlan(self._state, together=False) if plan.replicated else plan) if self._writes else None
        self._slots.clear()
        problem = self._memory_problem(self._plan) if self._plan else ""
        if problem:
            self._tell_off(problem)
        if any(from_all(problem)):
            self._on = False
        else:
            self._prepare(self._slot)

    @property
    def _writes(self) -> bool:
        """Of what all ranks have, some members keep a copy; else every rank copies its part."""
        assert self._agreed is not None, "a plan is agreed on first"
        places = writers(self._assignment.record.members)
        return not self._agreed.replicated or self._assignment.rank in [place.first_rank for place in places]

    @property
    def _shard(self) -> tuple[SnapshotNumber, int]:
        assert self._agreed is not None, "a plan is agreed on first"
        step, generation, world = self._begun, self._saver.generation, self._saver.world
        if self._agreed.replicated:
            return SnapshotNumber(step, generation, 1), 0
        return SnapshotNumber(step, generation, world.size), world.rank

    def _memory_problem(self, plan: StatePlan) -> str:
        """Why the memory does not suffice; empty when it does."""
        place = self._assignment.place
        alone = plan is not self._agreed  # with the whole state, of which nothing is sent
        ranks = 1 if alone else place.ranks
        shards = 1 if alone else ranks_kept(self._assignment.record.members, place.member)
        size = allocated(size_of(plan.spans))
        there = shards * sum(self._path(slot, TENSORS).stat().st_size for slot in range(SLOTS))
        missing = (SLOTS * shards + ranks) * size - there  # a checkpoint's copies too, which may not be there yet
        available = available_bytes()
        if missing <= available:
            return ""
        return (
            f"memory snapshots need {missing} bytes more on {place.pod}, and {available} are available: raise the "
            f"memory limit, or set checkpoint.memorySnapshotSteps: 0"
        )

    def _path(self, slot: int, name: str) -> Path:
        return slot_file(Path(self._assignment.snapshots), self._assignment.local_rank, slot, name)

    def _prepare(self, slot: int) -> None:
        """Have a thread make the slot ready; it must be free."""
        plan, device = self._plan, self._saver.world.device
        if plan is not None and slot not in self._slots:
            path, pinned = self._path(slot, TENSORS), device.type == "cuda"
            self._slots[slot] = Background(
                lambda: Snapshot(plan, device, Image(plan.sources, pinned, lambda size: _map(path, size)))
            )

    def _before_update(self, _optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        if self._copying is not None:
            self._copying.wait()
            self._copying = None

    def _rest(self, objects: dict[str, bytes]) -> bytes:
        assert self._plan is not None, "this rank copies"
        described = self._plan.description if self._shard[1] == 0 else None
        manifest = self._saver.manifest(self._state.position, {})
        return pickle.dumps(Rest(manifest, described.pickled() if described else b"", objects))

    def _run(self, snapshot: Snapshot, slot: int, rest: bytes) -> None:
        number, shard = self._shard
        snapshot.copy()
        try:
            self._path(slot, REST).write_bytes(rest)
            if self._saver.world.leads:
                self._saver.settle()
        except OSError as error:
            self._tell_off(f"memory snapshot of step {number.step}: {describe(error)}")
            return
        image = snapshot.image
        files = {TENSORS: _file(image.content()[: image.size]), REST: _file(memoryview(rest))}
        generation, rank = self._saver.generation, self._assignment.rank
        self._channel.send(
            SnapshotTaken(generation=generation, rank=rank, number=number, shard=shard, slot=slot, files=files)
        )

    def _tell_off(self, why: str) -> None:
        self._channel.send(SnapshotsOff(generation=self._saver.generation, rank=self._assignment.rank, why=why))


def _file(content: memoryview) -> SnapshotFile:
    return SnapshotFile(len(content), xxhash.xxh3_64(content).hexdigest())


def _map(path: Path, size: int) -> mmap.mmap:
    with path.open("r+b") as file:
        os.ftruncate(file.fileno(), size)
        return mmap.mmap(file.fileno(), size)
