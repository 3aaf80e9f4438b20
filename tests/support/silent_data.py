"""A rank whose training data does not come for a while, as from an NFS server that hangs, or gives
errors on a soft mount.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from regroup_trainer.data.dataset import Arrays
from regroup_trainer.data.order_arrays import Ids
from regroup_trainer.data.sequences import Sequences
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.rank import rank_process
from tests.support.waiting import wait_until

SILENT = "silent"
"""While this file is in the job's directory, no sample can be read."""
FAILING = "failing"
"""While this file is there, reading gives an error."""


def run(assignment: Assignment, channel: Channel) -> int:
    """Train; who reads a sample waits, or fails, as long as one of the files is there."""
    plain = Sequences.read_training
    directory = Path(assignment.record.desired.directory)
    silent, failing = directory / SILENT, directory / FAILING

    def read(self: Sequences, ids: Ids) -> Arrays:
        wait_until("the data", lambda: not silent.exists(), 250.0, every=0.05)
        if failing.exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO), "/data/train.bin")
        return plain(self, ids)

    Sequences.read_training = read  # type: ignore[method-assign]
    return rank_process.run(assignment, channel)
