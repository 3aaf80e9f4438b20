"""A rank for the tests of template and agent: the name of its job says what it does."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time

from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.protocol.rank_messages import Finished, LastLine, Progress, Restored
from regroup_trainer.system.log_lines import rank_log


def run(assignment: Assignment, channel: Channel) -> int:
    """Send the first report, then do what the job's name says."""
    number, rank = assignment.record.number, assignment.rank
    channel.send(Restored(generation=number, rank=rank, step=0))
    match assignment.record.desired.job:
        case "finish":
            channel.send(Finished(generation=number, rank=rank, step=0, reason="completed"))
        case "finish, then abort":
            rank_log.info("the rank has finished")
            channel.send(Finished(generation=number, rank=rank, step=0, reason="completed"))
            abort()
        case "abort after the last line":
            channel.send(LastLine(generation=number, rank=rank))
            abort()
        case "raise":
            raise ValueError("the data is upside down")
        case "complain":
            rank_log.warning("checkpoint of step %d failed", 5)
            print("ConfigError: the data is upside down", file=sys.stderr)
            return 3
        case "die" | "be interrupted" as how:
            signal.raise_signal(signal.SIGKILL if how == "die" else signal.SIGINT)
        case "crash":
            leave_no_core()
            ctypes.string_at(0)
        case "hang":
            signal.pause()
        case "complain, then hang":
            print("a peer was lost", file=sys.stderr)
            channel.send(Progress(generation=number, rank=rank, step=1, time=time.time()))
            signal.pause()
        case "become another program":
            os.execvp("sleep", ["sleep", "600"])
        case "stall":
            channel.send(Progress(generation=number, rank=rank, step=1, time=time.time()))
            wait_for_ever()
    return 0


def abort() -> None:
    """End as a C++ destructor that raises does."""
    leave_no_core()
    os.abort()


def leave_no_core() -> None:
    """Have a crash dump nothing: it would have 800 MB."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def wait_for_ever() -> None:
    """Stall. The stack of the rank shows this function."""
    while True:  # it returns after every signal
        signal.pause()
