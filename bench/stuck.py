"""A fault that only a rank can have: on a signal it hangs in user code."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType

SIGNAL = signal.SIGUSR2


def listen() -> None:
    """Let SIGNAL get the main thread stuck."""
    signal.signal(SIGNAL, be_stuck)


def be_stuck(_signal: int, _frame: FrameType | None) -> None:
    """Sleep for ever, which looks like a deadlock from outside."""
    while True:
        time.sleep(1.0)


def take_name(rank: int) -> None:
    """Give this process the name that Regroup's ranks have, by which `Nodes.find` finds it."""
    Path("/proc/self/comm").write_text(f"rank-{rank}")
