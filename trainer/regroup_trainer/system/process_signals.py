"""Signals that arrive while a process starts or ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import NoReturn


def end_upon_sigterm() -> None:
    """Have SIGTERM end this process at once, with 143, until it takes the signal otherwise.

    Call it before the imports of a process that is PID 1 of a container. Linux ignores a signal to
    PID 1 that has no handler, so that a pod which is deleted in its first seconds would stay for
    its whole grace period.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))


def end_at_once(code: int) -> NoReturn:
    """End this process without the end of the interpreter, which frees all that is in memory: it
    takes seconds where thousands of objects are. All that must be saved or closed is so already.
    """
    import logging  # `end_upon_sigterm` has to come first

    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
            stream.flush()
    os._exit(code)


def ignore_signals(*numbers: signal.Signals) -> None:
    """Ignore these signals from now on: the process ends already. Call it in the running event
    loop, in the main thread, as the last thing before the loop closes.

    A loop that closes first closes the socket to which Python reports signals, and resets their
    handlers afterwards. A second signal in between prints an error, and one after it a traceback.
    """
    import asyncio  # takes a tenth of a second, and `end_upon_sigterm` has to come first

    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
