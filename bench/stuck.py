"""A fault that only a rank can have: on a signal it is stuck in code of its user's, for ever."""

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
    """What a deadlock or an endless loop looks like from outside."""
    while True:
        time.sleep(1.0)


def take_name(rank: int) -> None:
    """Let this process be found as the regroup's ranks are, by its name."""
    Path("/proc/self/comm").write_text(f"rank-{rank}")
