"""Signals that arrive while a process ends."""

from __future__ import annotations

import asyncio
import signal


def ignore_signals(*numbers: signal.Signals) -> None:
    """Ignore these signals from now on: the process ends already. Call it in the running event
    loop, in the main thread, as the last thing before the loop closes.

    A loop that closes first closes the socket to which Python reports signals, and resets their
    handlers afterwards. A second signal in between prints an error, and one after it a traceback.
    """
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
