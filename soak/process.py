"""A process on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

from devcluster.processes import memory_mib, start_time


@dataclass(frozen=True)
class Process:
    """A process, distinct from a later one with the same id."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Raises LookupError when it is gone."""
        started = start_time(pid)
        if started is None:
            raise LookupError(f"process {pid} is gone")
        return cls(pid, started)

    @property
    def is_gone(self) -> bool:
        """Whether it has ended."""
        return start_time(self.pid) != self.started

    def kill(self) -> None:
        """SIGKILL; it may have ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def mebibytes(process: Process) -> float | None:
    """The memory that a process has in use."""
    with contextlib.suppress(LookupError):
        return memory_mib(process.pid)
    return None
