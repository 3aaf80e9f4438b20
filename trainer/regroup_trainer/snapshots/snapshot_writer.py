"""A rank's part in memory snapshots: it copies its part of the state into its agent's memory,
beside the training.

Nothing of this needs the volume: steps that it may lack travel with the snapshot.

All ranks begin a copy after the same step, and only once the snapshot before is complete
everywhere. Each rank has two slots of memory and writes them in turn, so that a whole snapshot is
never overwritten by one that may not become whole.
"""

from __future__ import annotations

import mmap
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path

import xxhash
from torch.optim import Optimizer

from regroup_trainer.checkpoint.image import Image, allocated, size_of
from regroup_trainer.checkpoint.layout import Manifest
from regroup_trainer.checkpoint.save import Saver
from regroup_trainer.checkpoint.staging import Snapshot
from regroup_trainer.checkpoint.state_plan import StatePlan
from regroup_trainer.checkpoint.volume_calls import describe
from regroup_trainer.protocol.channel import Sender
from regroup_trainer.protocol.generation import Assignment, SnapshotNumber
from regroup_trainer.protocol.rank_messages import SnapshotFile, SnapshotsOff, SnapshotTaken
from regroup_trainer.snapshots.neighbours import ranks_kept, writers
from regroup_trainer.snapshots.places import REST, SLOTS, TENSORS, CompletePage, slot_file
from regroup_trainer.snapshots.snapshot_schedule import SnapshotTimer
from regroup_trainer.step.agreement import all_gather
from regroup_trainer.step.state import TrainState
from regroup_trainer.system.background import Background
from regroup_trainer.system.log_lines import rank_log
from regroup_trainer.system.memory_limit import available_bytes, describe_bytes

_RETRY_SECONDS = (1.0, 5.0, 30.0)
"""Between attempts to write a snapshot; the last one is repeated."""


@dataclass(frozen=True)
class Rest:
    """What a shard contains besides tensors."""

    manifest: Manifest
    description: bytes
    """The description of the whole snapshot (`Description.pickled`) in the first shard; empty in
    others.
    """
    objects: dict[str, bytes]
    history: bytes = b""
    """The newest steps that the volume may lack, in the first shard: lines of the history."""


@dataclass(frozen=True)
class Source:
    """What snapshots are taken of."""

    state: TrainState
    plans: Callable[[], StatePlan]
    """Returns the plan that fits the present state."""
    steps_to_carry: Callable[[], bytes]
    """Returns the newest steps that the volume may lack, as lines of the history; bounded."""


class MemorySnapshots:
    """Takes snapshots in one generation; `close` it at the end.

    All ranks call its methods after the same steps, except `due` and `ready`. The optimizer waits
    for the copy before it changes the state. Where memory does not suffice, it reports that once
    and takes no snapshots.
    """

    def __init__(
        self,
        assignment: Assignment,
        saver: Saver,
        source: Source,
        channel: Sender,
    ) -> None:
        record = assignment.record
        wanted = record.desired.checkpoint.memory_snapshot_steps
        self._on = bool(assignment.snapshots) and wanted != 0
        self._timer = SnapshotTimer(wanted, source.state.position.step)
        self._assignment = assignment
        self._saver = saver
        self._state = source.state
        self._plans = source.plans
        self._steps_to_carry = source.steps_to_carry
        self._channel = channel
        self._agreed: StatePlan | None = None
        """The plan that all ranks have agreed on."""
        self._plan: StatePlan | None = None
        """What this rank copies; None while nothing is agreed, and where others copy for it."""
        self._slot = assignment.free_slot
        self._slots: dict[int, Background[Snapshot]] = {}
        self._copying: Snapshot | None = None
        self._work: Background[None] | None = None
        self._begun = self._state.position.step
        self._incomplete = False
        """Whether the newest snapshot may not be complete everywhere yet."""
        self._page = CompletePage(Path(assignment.snapshots)) if self._on else None
        self._closed = threading.Event()
        self._hook = self._state.optimizer.register_step_pre_hook(self._before_update)

    def due(self) -> bool:
        """Whether to take a snapshot after the step that is about to run. Rank 0 asks; the commit
        brings the answer to the others.
        """
        return (
            self._on
            and not self._incomplete
            and self._timer.due(self._state.position.step + 1)
            and self.ready
        )

    @property
    def ready(self) -> bool:
        """Whether a copy could begin at once. Memory of tens of GiB takes many seconds to prepare,
        in which the ranks should train.
        """
        if not self._on or (self._agreed is not None and self._plan is None):
            return True
        slot = self._slots.get(self._slot)
        return slot is not None and slot.done and slot.result().prepared

    def after_step(self) -> None:
        """Call it after every step: prepares the first copy, and later the other slot once that is
        free.
        """
        if not self._on:
            return
        if self._agreed is None:
            self._adopt(self._plans())
        if self._incomplete and self._page and self._page.step >= self._begun:
            self._incomplete = False
            self._prepare(self._slot)

    def may_begin(self) -> bool:
        """Whether this rank could copy the present state now, of which there is no snapshot yet."""
        self.after_step()
        is_new = self._begun != self._state.position.step
        return self._on and is_new and not self._incomplete and self.ready

    def begin(self) -> None:
        """Begin to copy the present state, beside the following steps."""
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

    def close(self, seconds: float) -> None:
        """End with the generation. What is being copied may still become whole, for which this
        waits at most so long.

        A process that goes on to another generation does not wait: its later reports would be
        dropped.
        """
        self._hook.remove()
        self._closed.set()
        if self._work is not None:
            self._work.wait(seconds)

    def _adopt(self, plan: StatePlan) -> None:
        """Agree with all ranks on the plan, and on whether there is memory for it."""
        self._agreed = plan
        self._plan = (
            (StatePlan(self._state, together=False) if plan.replicated else plan)
            if self._writes
            else None
        )
        self._slots.clear()
        problem = self._memory_problem(self._plan) if self._plan else ""
        if problem:
            self._report_off(problem)
        if any(all_gather(problem)):
            self._on = False
        else:
            self._prepare(self._slot)

    @property
    def _writes(self) -> bool:
        """Whether this rank copies. A state that every rank has whole is copied by some members
        only.
        """
        assert self._agreed is not None, "a plan is agreed on first"
        places = writers(self._assignment.record.members)
        return not self._agreed.replicated or self._assignment.rank in [
            place.first_rank for place in places
        ]

    @property
    def _shard(self) -> tuple[SnapshotNumber, int]:
        assert self._agreed is not None, "a plan is agreed on first"
        step, generation, group = self._begun, self._saver.generation, self._saver.group
        if self._agreed.replicated:
            return SnapshotNumber(step, generation, 1), 0
        return SnapshotNumber(step, generation, group.size), group.rank

    def _memory_problem(self, plan: StatePlan) -> str:
        """Why the memory does not suffice; empty when it does."""
        place = self._assignment.place
        alone = plan is not self._agreed  # it writes the whole state, of which nothing is sent
        ranks = 1 if alone else place.ranks
        shards = 1 if alone else ranks_kept(self._assignment.record.members, place.member)
        size = allocated(size_of(plan.spans))
        there = shards * sum(self._path(slot, TENSORS).stat().st_size for slot in range(SLOTS))
        missing = (
            (SLOTS * shards + ranks) * size - there
        )  # the memory of a checkpoint's copy counts too; it may not be allocated yet
        available = available_bytes()
        if missing <= available:
            return ""
        return (
            f"memory snapshots are off: they need {describe_bytes(missing)} more on {place.where}, "
            f"and {describe_bytes(available)} are available (raise the memory limit, or set "
            "checkpoint.memorySnapshotSteps: 0); recoveries use live ranks or a checkpoint"
        )

    def _path(self, slot: int, name: str) -> Path:
        return slot_file(Path(self._assignment.snapshots), self._assignment.local_rank, slot, name)

    def _prepare(self, slot: int) -> None:
        """Let a thread prepare the slot, which must be free."""
        plan, device = self._plan, self._saver.group.device
        if plan is not None and slot not in self._slots:
            path, pinned = self._path(slot, TENSORS), device.type == "cuda"
            self._slots[slot] = Background(
                lambda: Snapshot(
                    plan, device, Image(plan.sources.tensors, pinned, lambda size: _map(path, size))
                )
            )

    def _before_update(self, _optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        if self._copying is not None:
            self._copying.wait()
            self._copying = None

    def _rest(self, objects: dict[str, bytes]) -> bytes:
        assert self._plan is not None, "this rank copies"
        manifest = self._saver.manifest(self._state.position, {})
        rest = Rest(manifest, b"", objects)
        if self._shard[1] == 0:
            described, steps = self._plan.description, self._steps_to_carry()
            description = described.pickled() if described else b""
            rest = replace(rest, description=description, history=steps)
        return pickle.dumps(rest)

    def _run(self, snapshot: Snapshot, slot: int, rest: bytes) -> None:
        number, shard = self._shard
        snapshot.copy()
        if not self._write(self._path(slot, REST), rest):
            return
        image = snapshot.image
        files = {TENSORS: _file(image.content()[: image.size]), REST: _file(memoryview(rest))}
        generation, rank = self._saver.generation, self._assignment.rank
        self._channel.send(
            SnapshotTaken(
                generation=generation, rank=rank, number=number, shard=shard, slot=slot, files=files
            )
        )

    def _write(self, path: Path, content: bytes) -> bool:
        """Write to the memory of the agent, however often that takes; False when the generation is
        over before.
        """
        for pause in chain(_RETRY_SECONDS, repeat(_RETRY_SECONDS[-1])):
            try:
                path.write_bytes(content)
            except OSError as error:
                why = f"no memory for the snapshot of step {self._begun}: {describe(error)}"
                rank_log.warning("%s; it is tried again", why)
                if self._closed.wait(pause):
                    break
            else:
                return True
        return False

    def _report_off(self, why: str) -> None:
        self._channel.send(
            SnapshotsOff(generation=self._saver.generation, rank=self._assignment.rank, why=why)
        )


def _file(content: memoryview) -> SnapshotFile:
    return SnapshotFile(len(content), xxhash.xxh3_64(content).hexdigest())


def _map(path: Path, size: int) -> mmap.mmap:
    with path.open("r+b") as file:
        os.ftruncate(file.fileno(), size)
        return mmap.mmap(file.fileno(), size)
