"""Lets the ranks of a program act at the same step, when one of them was asked to stop or the time
for a save has come.

The ranks sum their requests at the end of each step, by gloo and in the background. What they read
is the sum of the step before, which has arrived by then. So a step does not wait, and no GPU is
held up.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType
from typing import NamedTuple, cast

import torch
import torch.distributed as dist

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.rank.script_report import report

STOPPED = 128 + signal.SIGTERM
"""Exit code of a program that saved and ended because it was asked to."""


class Agreed(NamedTuple):
    """What all ranks do after this step."""

    stop: bool
    """Save and end: somebody sent SIGTERM to a rank."""
    save: bool


class StopAgreement:
    """Begins to listen to SIGTERM. All ranks make one at the same time, after their process
    group.
    """

    def __init__(self, every_steps: int | None, every_seconds: float | None) -> None:
        for name, value in (("every_steps", every_steps), ("every_seconds", every_seconds)):
            if value is not None and value <= 0:
                raise ConfigurationError(f"{name}: {value}: give a number above 0")
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._saved_at = time.monotonic()
        self._is_asked = False
        self._group: dist.ProcessGroup | None = None
        if has_peers():
            self._group = cast("dist.ProcessGroup", dist.new_group(backend="gloo"))
        self._requests = torch.zeros(2)
        self._pending: dist.Work | None = None
        self._former = signal.signal(signal.SIGTERM, self._note_signal)

    def after(self, step: int, total: int | None = None) -> Agreed:
        """What all ranks do after this step, which the job's status shows. All of them call it,
        once a step.
        """
        report(step=step, total=total)
        requested = self._read()
        is_due = bool(self._every_steps) and step % (self._every_steps or 1) == 0
        agreed = Agreed(bool(requested[0]), bool(requested[1]) or is_due)
        if agreed.stop or agreed.save:
            self._saved_at = time.monotonic()
        self._send()
        return agreed

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
