"""A rank's life in which the sum of one commit reaches some ranks only."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

from regroup_trainer import rank, step
from regroup_trainer.channel import Channel
from regroup_trainer.commit import Commit
from regroup_trainer.contract import Assignment
from tests.support.waiting import wait_until

STEP = 30
DYING = "DYING_RANK"
"""Environment variable."""


def run(assignment: Assignment, channel: Channel) -> int:
    """One rank dies with the result, rank 1 never hears it, the third applies it."""
    if assignment.record.number.n == 1:
        _lose_one_commit(assignment.rank, Path(assignment.record.desired.directory))
    return rank.run(assignment, channel)


def _lose_one_commit(own_rank: int, directory: Path) -> None:
    plain, commits = step.Proposal.agreed, itertools.count(1)

    def agreed(self: step.Proposal, squared_norm: float | None) -> Commit:
        committed = plain(self, squared_norm)
        if next(commits) == STEP:
            (directory / f"reduced-{own_rank}").touch()
            if own_rank == int(os.environ[DYING]):
                # Not before all have their gradients: what it had still to send them would be lost with it.
                wait_until("the others", lambda: len(list(directory.glob("reduced-*"))) == 3, every=0.002)
                os.kill(os.getpid(), signal.SIGKILL)
            if own_rank == 1:
                raise RuntimeError("Connection closed by peer: the sum did not arrive")
        return committed

    step.Proposal.agreed = agreed  # type: ignore[method-assign]
