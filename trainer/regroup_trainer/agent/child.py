"""Settings that a child process makes for itself: to end with its parent, and its name in `ps`."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when the thread that started it ends; `parent` is that process's id.

    Ends at once when the parent is gone already. Linux only; elsewhere children may be left over.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """Show `name` (15 bytes at most) in ps and top instead of the interpreter's."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))


def _prctl(option: int, argument: object) -> None:
    prctl = getattr(_libc, "prctl", None)
    if prctl is not None:
        prctl(option, argument, 0, 0, 0)
