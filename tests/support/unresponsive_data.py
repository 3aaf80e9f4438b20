"""A rank whose volume gives nothing for a while, as an NFS server that hangs, or errors on a soft
mount: no samples, no training data to open, no checkpoint, or no weights to begin with.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regroup_trainer.checkpoint import safetensors_folder
from regroup_trainer.checkpoint.load import CheckpointReader
from regroup_trainer.data import files
from regroup_trainer.data.sequences import Sequences
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.rank import rank_process
from tests.support.waiting import wait_until

UNRESPONSIVE, FAILING = "unresponsive", "failing"
"""While such a file is in the job's directory, reading what its name says waits, or gives an error:
`samples-unresponsive`.
"""
SAMPLES, OPENING, CHECKPOINT, WEIGHTS = "samples", "opening", "checkpoint", "weights"


def run(assignment: Assignment, channel: Channel) -> int:
    """Train; reading fails as long as one of the files is there."""
    directory = Path(assignment.record.desired.directory)

    def unsteady(what: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        unresponsive, failing = (directory / f"{what}-{how}" for how in (UNRESPONSIVE, FAILING))

        def read(*arguments: Any) -> Any:
            wait_until("the volume", lambda: not unresponsive.exists(), 250.0, every=0.05)
            if failing.exists():
                raise OSError(errno.EIO, os.strerror(errno.EIO), f"/data/{what}.bin")
            return plain(*arguments)

        return read

    for what, owner, name in (
        (SAMPLES, Sequences, "read_training"),
        (OPENING, files, "open_file"),
        (CHECKPOINT, CheckpointReader, "read_data"),
        (WEIGHTS, safetensors_folder, "opened"),
    ):
        setattr(owner, name, unsteady(what, getattr(owner, name)))
    return rank_process.run(assignment, channel)
