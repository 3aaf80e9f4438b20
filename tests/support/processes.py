"""Processes as a test sees them from outside."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from devcluster.processes import read_proc


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    stat = read_proc(pid, "stat")
    return bool(stat) and stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def open_files(pid: int, name: str) -> list[Path]:
    """The descriptors of open files with `name` in their path."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if name in str(link.readlink()):
                found.append(link)
    return found


def freeze(pids: Iterable[int]) -> None:
    """Stop them, as far as they have not ended."""
    _signal(pids, signal.SIGSTOP)


def thaw(pids: Iterable[int]) -> None:
    """Let them go on, as far as they have not ended."""
    _signal(pids, signal.SIGCONT)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
