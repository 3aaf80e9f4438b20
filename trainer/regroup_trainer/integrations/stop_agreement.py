"""Lets the ranks of a program act at the same step, when one of them was asked to stop or the time
for a save has come.

The ranks sum their requests at the end of each step, by gloo and in the background. What they read
is the sum of the step before, which has arrived by then. So a step does not wait, and no GPU is
held up.
"""

from __future__ import annotations

import math
import os
import signal
import time
from numbers import Integral, Real
from types import FrameType
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.exit_codes import TERMINATED
from regroup_trainer.rank.script_report import report

STOPPED = TERMINATED
"""Exit code of a program that saved and ended because it was asked to."""


class Agreed(NamedTuple):
    """What all ranks do now."""

    stop: bool
    """Save and end: somebody sent SIGTERM to a rank."""
    save: bool


class StopAgreement:
    """Begins to listen to SIGTERM. All ranks make one at the same time, after their process
    group. `start` is the step that the run goes on after.
    """

    def __init__(
        self, every_steps: int | None, every_seconds: float | None, start: int = 0
    ) -> None:
        _require_above_0("every_steps", every_steps, Integral, "a whole number")
        _require_above_0("every_seconds", every_seconds, Real, "a number")
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._step = start
        self._saved_at = time.monotonic()
        self._is_asked = self._is_due = False
        self._group: dist.ProcessGroup | None = None
        if has_peers():
            self._group = cast("dist.ProcessGroup", dist.new_group(backend="gloo"))
        self._requests = torch.zeros(2)
        self._pending: dist.Work | None = None
        self._former = signal.signal(signal.SIGTERM, self._note_signal)

    def after(self, step: int, total: int | None = None) -> Agreed:
        """What all ranks do after this step, which the job's status shows. All of them call it,
        once a step or more often: while the step is the same, nothing is agreed, as gradients are
        being accumulated.
        """
        report(step=step, total=total)
        is_asked, is_due = (bool(request) for request in self._read())
        self._is_due |= is_due or self._passes_multiple(step)
        agreed = Agreed(is_asked, self._is_due) if step > self._step else Agreed(False, False)
        if agreed.stop or agreed.save:
            self._is_due, self._saved_at = False, time.monotonic()
        self._step = step
        self._send()
        return agreed

    def _passes_multiple(self, step: int) -> bool:
        every = self._every_steps
        return every is not None and step // every > self._step // every

    def close(self) -> None:
        """Wait for what is on its way, and give SIGTERM back. All ranks call it."""
        self._read()
        signal.signal(signal.SIGTERM, self._former)

    def _read(self) -> torch.Tensor:
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        return self._requests

    def _send(self) -> None:
        waited = time.monotonic() - self._saved_at
        is_due = self._every_seconds is not None and waited >= self._every_seconds
        self._requests = torch.tensor([float(self._is_asked), float(is_due)])
        if self._group is not None:
            self._pending = dist.all_reduce(self._requests, group=self._group, async_op=True)

    def _note_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._is_asked = True


def _require_above_0(name: str, value: Any, kind: Any, what: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
        raise ConfigurationError(f"{name}: {value}: give {what} above 0")


def has_peers() -> bool:
    """Whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def require_joined(how: str) -> None:
    """Raises ConfigurationError in one of several ranks that have no process group: each would save
    over the other. `how` says how they get one.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if size != "1" and not has_peers():
        raise ConfigurationError(f"WORLD_SIZE: {size} ranks were started, and did not join: {how}")


def is_rank0() -> bool:
    """Whether this rank, or this process alone, does what is done once."""
    return not has_peers() or dist.get_rank() == 0


def wait_for_all() -> None:
    """Wait for all ranks to come here."""
    if has_peers():
        dist.barrier()


def from_rank0(value: str) -> str:
    """The value that rank 0 has. All ranks call it."""
    values = [value]
    if has_peers():
        dist.broadcast_object_list(values, src=0)
    return values[0]
