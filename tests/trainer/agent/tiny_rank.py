"""A rank's life for the tests of template and agent: it does what its job's name says."""

from __future__ import annotations

import os
import signal
import sys
import time

from regroup_trainer.channel import Channel
from regroup_trainer.contract import Assignment, Finished, Progress, Restored


def run(assignment: Assignment, channel: Channel) -> int:
    """End as asked, after the first word."""
    number, rank = assignment.record.number, assignment.rank
    channel.send(Restored(generation=number, rank=rank, step=0))
    match assignment.record.desired.job:
        case "finish":
            channel.send(Finished(generation=number, rank=rank, step=0, reason="completed"))
        case "raise":
            raise ValueError("the data is upside down")
        case "complain":
            print("ConfigError: the data is upside down", file=sys.stderr)
            return 3
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            signal.pause()
        case "stall":
            channel.send(Progress(generation=number, rank=rank, step=1, time=time.time()))
            wait_for_ever()
    return 0


def wait_for_ever() -> None:
    """What a stack shows of a rank that stalls."""
    while True:  # it returns after every signal
        signal.pause()
