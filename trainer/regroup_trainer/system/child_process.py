"""Settings that a child process makes for itself: its end with its parent, its name in `ps`. And
what its parent sees of it.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when the thread that started it ends.

    `parent` is the id of the parent process; if it is gone already, this process ends at once.
    Linux only: elsewhere children may outlive their parent.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """Show `name` (at most 15 bytes) in ps and top instead of the interpreter's name."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))


def bytes_written(pids: Iterable[int]) -> int:
    """What these processes have passed to `write` and its like so far, files and pipes together.
    Those that are gone, or that may not be looked at, count as 0.
    """
    return sum(_bytes_written(pid) for pid in pids)


def _bytes_written(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("wchar:")), 0)


def _prctl(option: int, argument: object) -> None:
    prctl = getattr(_libc, "prctl", None)
    if prctl is not None:
        prctl(option, argument, 0, 0, 0)
