"""A rank's life in which the sum of one commit reaches some ranks only, or late."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from regroup_trainer import rank, step, world
from regroup_trainer.channel import Channel
from regroup_trainer.contract import Assignment
from tests.support.waiting import wait_until

STEP = 30
DYING = "DYING_RANK"
"""Environment variable: who dies with the result of that step."""
LATE = "SUM_COMES_LATE"
"""Environment variable. Unset: rank 1 never hears it, the third applies it. Else both see it after they shall leave."""
_MOMENT_SECONDS = 0.01


def run(assignment: Assignment, channel: Channel) -> int:
    """As any rank, but for one commit of the first generation."""
    if assignment.record.number.n == 1:
        _disturb_one_commit(assignment.rank, Path(assignment.record.desired.directory), channel)
    return rank.run(assignment, channel)


def _disturb_one_commit(own_rank: int, directory: Path, channel: Channel) -> None:
    plain, plain_cut, commits, cut = step.Proposal.told, world.cut_off, itertools.count(1), threading.Event()

    def cut_off(addresses: Collection[str]) -> None:
        cut.set()
        plain_cut(addresses)

    def told(self: step.Proposal) -> Callable[[], list[float]]:
        read = plain(self)
        if next(commits) == STEP:
            (directory / f"reduced-{own_rank}").touch()
            # Not before all are here: what a rank had still to send would be lost with its connections.
            wait_until("the others", lambda: len(list(directory.glob("reduced-*"))) == 3, every=0.002)
            if own_rank == int(os.environ[DYING]):
                os.kill(os.getpid(), signal.SIGKILL)
            if LATE in os.environ:
                wait_until("the order to leave", channel.is_over, every=0.002)
            if cut.wait(_MOMENT_SECONDS) if LATE in os.environ else own_rank == 1:
                raise RuntimeError("Connection closed by peer: the sum did not arrive")
        return read

    step.Proposal.told = told  # type: ignore[method-assign]
    world.cut_off = cut_off
