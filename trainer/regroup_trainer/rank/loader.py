"""Reads samples and brings them to the device.

A thread reads the batches of the next steps while a step trains. A resumed run asks for the
position that was committed, so what was read ahead of it is dropped.

The files may be on a volume that does not answer, or gives errors for minutes. So the thread tries
again, and the rank waits in a way that it can leave.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from regroup_trainer.checkpoint.volume_calls import VolumeHealth
from regroup_trainer.data import Arrays, Dataset, order_arrays
from regroup_trainer.data.batch import BatchPlanner, MicroBatch, micro_batches
from regroup_trainer.data.dataset import Array
from regroup_trainer.data.files import unreadable
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.rank.prefetch import Prefetch, result_of, wait_quietly
from regroup_trainer.step.rank_batch import DeviceBatch, RankBatch
from regroup_trainer.system.background import Background
from regroup_trainer.system.volume_errors import may_pass

T = TypeVar("T")
WhileReading = Callable[[float, str], object]
"""Called ten times a second by who waits: with the time since when (seconds since the epoch), and
with what the last attempt to read met, empty where it met nothing yet. What it raises ends the
wait.
"""
_AHEAD = 2
"""Steps that are read ahead: one hides reading behind training, one more evens out slow reads."""


@dataclass(frozen=True)
class _HostBatch:
    """A step's batch before it goes to the device; in page-locked memory where that is a GPU."""

    micro_batches: list[DeviceBatch]
    samples: int
    digest: int


class Loader:
    """Reads this rank's samples. Close it in the end: it has a thread."""

    def __init__(
        self,
        data: Dataset,
        planner: BatchPlanner,
        group: GenerationGroup,
        sequence_slice: slice | None = None,
        is_patient: bool = False,
    ) -> None:
        """`sequence_slice`: the positions of each sequence that this rank works on; None: all.
        `is_patient`: whether errors that may pass are waited for; somebody must be there to report
        them.
        """
        self.data = data
        self.planner = planner
        self._device = group.device
        self._cut = (slice(None), sequence_slice) if sequence_slice else slice(None)
        self._is_patient = is_patient
        self._closed = threading.Event()
        self._met = VolumeHealth(Path())
        self._ahead = Prefetch(self._read, stride=planner.global_batch_size, ahead=_AHEAD)

    def training(self, first: int, waiting: WhileReading = wait_quietly) -> RankBatch:
        """The rank's share of the global batch that begins at position `first`. Raises DataError,
        and what `waiting` raises.
        """
        batch = self._ahead.at(first, lambda since: waiting(since, self._met.failure))
        return RankBatch(
            [self._on_device(part) for part in batch.micro_batches], batch.samples, batch.digest
        )

    def held_out(self, count: int, waiting: WhileReading = wait_quietly) -> list[DeviceBatch]:
        """The rank's share of the first `count` held-out samples, or of all where there are fewer.
        Raises DataError, and what `waiting` raises.
        """
        met = VolumeHealth(Path())
        read = Background(lambda: self._insist(met, lambda: self._read_held_out(count)))
        found = result_of(read.future, lambda since: waiting(since, met.failure))
        return [self._on_device(part) for part in found]

    def close(self) -> None:
        """End the thread, some time."""
        self._closed.set()
        self._ahead.close()

    def _insist(self, met: VolumeHealth, read: Callable[[], T]) -> T:
        """What `read` returns, however many attempts it takes. Raises DataError."""
        try:
            return met.insist(read, self._is_final, self._closed)
        except OSError as error:
            raise unreadable(error) from error

    def _is_final(self, error: OSError) -> bool:
        return not self._is_patient or not may_pass(error)

    def _read_held_out(self, count: int) -> list[DeviceBatch]:
        ids = np.arange(min(count, self.data.held_out_samples))
        planner = self.planner
        parts = micro_batches(
            ids, planner.rank, planner.world_size, planner.micro_batch_size, planner.multiple
        )
        return [self._tensors(part, self.data.read_held_out(part.ids)) for part in parts]

    def _read(self, first: int) -> _HostBatch:
        plan = self.planner.plan(first)
        parts = self._insist(
            self._met,
            lambda: [
                self._tensors(part, self.data.read_training(part.ids))
                for part in plan.micro_batches
            ],
        )
        return _HostBatch(parts, len(plan.own_ids), order_arrays.digest(plan.own_ids))

    def _tensors(self, part: MicroBatch, arrays: Arrays) -> DeviceBatch:
        inputs, targets = arrays.inputs[self._cut], arrays.targets[self._cut]
        return DeviceBatch(self._tensor(inputs), self._tensor(targets), self._tensor(part.weights))

    def _tensor(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory() if self._device.type == "cuda" else tensor

    def _on_device(self, batch: DeviceBatch) -> DeviceBatch:
        tensors = (batch.inputs, batch.targets, batch.weights)
        return DeviceBatch(*(tensor.to(self._device, non_blocking=True) for tensor in tensors))
