"""What the ranks of a new generation need of the volume, however long it takes.

A state in memory must not be lost because the volume is full, or away. So the call runs in a
thread, the ranks wait for it together, and its rank reports what it waits for. The wait ends when
the generation is over; the state then waits for the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from regroup_trainer.checkpoint.volume_calls import VolumeCall, describe
from regroup_trainer.errors import GenerationOverError, StorageError
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.generation import GenerationRecord
from regroup_trainer.protocol.rank_messages import BUSY_SECONDS, Busy
from regroup_trainer.step.agreement import broadcast_from_rank0, until_all
from regroup_trainer.system.volume_errors import may_pass

T = TypeVar("T")
_MOMENT_SECONDS = 0.1
"""Between looks of all ranks at a call: short, so that no collective takes long."""
_IN_MEMORY = "The state stays in the memory of the ranks or of their agents until then."
_ON_VOLUME = "No state is in memory: nothing is lost, and the job waits."


def where_data_lies(desired: Desired) -> str:
    """The paths of the training data, to be named in a report."""
    return ", ".join(desired.train.data.paths) or desired.directory


@dataclass
class VolumeAccess:
    """Calls on the volume of one rank that enters a generation. After `open_data`, all ranks make
    the same calls.

    They raise GenerationOverError when the generation is over; StorageError where waiting does not
    help: no state is in memory, and the error is none of a volume that is full or away.
    """

    record: GenerationRecord
    rank: int
    channel: Channel
    _reported_at: float = field(default=0.0, init=False)

    def open_data(self, load: Callable[[], T]) -> T:
        """The training data that `load` opens, on a rank that has not joined the others yet. Those
        that have their data wait for it there.

        Raises OSError only in a program without an agent, and what else `load` raises.
        """
        self.channel.when_over(self.record.number, lambda: None)
        path = Path(where_data_lies(self.record.desired))
        call = VolumeCall(load, path, lambda _: not self.channel.lasting)
        while not call.wait(_MOMENT_SECONDS):
            self._go_on_waiting(call)
        return call.result()

    def on_rank0(self, action: Callable[[], T]) -> T:
        """The result of `action` on rank 0, on all ranks. It must pickle."""
        call = self._begin(action) if self.rank == 0 else None
        while (box := broadcast_from_rank0(lambda: self._look(call))) is None:
            pass
        return box[0]

    def on_every_rank(self, action: Callable[[], T], path: Path | None = None) -> T:
        """The result of `action` on this rank, when all ranks have theirs. It needs `path`, by
        default the job's directory.
        """
        call = self._begin(action, path)
        until_all(lambda: self._look(call) is not None)
        return call.result()

    def _begin(self, action: Callable[[], T], path: Path | None = None) -> VolumeCall[T]:
        return VolumeCall(action, path or Path(self.record.desired.directory), self._is_final)

    def _is_final(self, error: OSError) -> bool:
        if not self.channel.lasting:
            return True  # a program without an agent: its user is there to read the error
        return not self._state_lives and not may_pass(error)

    @property
    def _state_lives(self) -> bool:
        return self.record.restored_from in ("Peers", "Snapshot")

    def _look(self, call: VolumeCall[T] | None) -> tuple[T] | None:
        """The result in a box; None while there is none yet."""
        assert call is not None, "the rank that looks has begun the call"
        if call.wait(_MOMENT_SECONDS):
            return (self._result(call),)
        self._go_on_waiting(call)
        return None

    def _go_on_waiting(self, call: VolumeCall[T]) -> None:
        """Report the wait, now and then. Raises GenerationOverError."""
        if self.channel.is_over():
            call.abandon()
            raise GenerationOverError(f"generation {self.record.number} is over")
        self._report(call)

    def _result(self, call: VolumeCall[T]) -> T:
        try:
            return call.result()
        except OSError as error:
            directory = Path(self.record.desired.directory)
            what = f"the job's directory {directory}" if call.path == directory else str(call.path)
            raise StorageError(f"{what} cannot be used: {describe(error)}") from error

    def _report(self, call: VolumeCall[T]) -> None:
        """Also without a problem: the deadline of a first step may be shorter than the wait."""
        if time.monotonic() - self._reported_at < BUSY_SECONDS:
            return
        self._reported_at = time.monotonic()
        self.channel.send(
            Busy(
                generation=self.record.number,
                rank=self.rank,
                doing="waiting for the volume",
                step=0,
                volume=call.problem(_IN_MEMORY if self._state_lives else _ON_VOLUME),
            )
        )
