"""A rank for which the sum of one commit arrives late, or on some ranks only."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from regroup_trainer.parallel import process_group
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.rank import rank_process
from regroup_trainer.step.proposal import Proposal
from tests.support.waiting import wait_until

STEP = 30
DYING = "DYING_RANK"
"""Environment variable: the rank that dies with the result of that step."""
LATE = "SUM_COMES_LATE"
"""Environment variable. If unset, rank 1 never receives the sum and the third rank applies it.
Otherwise both receive it after the order to leave.
"""
_MOMENT_SECONDS = 0.01


def run(assignment: Assignment, channel: Channel) -> int:
    """Run as any rank, except for one commit of the first generation."""
    if assignment.record.number.n == 1:
        _disturb_one_commit(assignment.rank, Path(assignment.record.desired.directory), channel)
    return rank_process.run(assignment, channel)


def _disturb_one_commit(own_rank: int, directory: Path, channel: Channel) -> None:
    plain, plain_cut, commits, cut = (
        Proposal.receive,
        process_group.cut_off,
        itertools.count(1),
        threading.Event(),
    )

    def cut_off(addresses: Collection[str]) -> None:
        cut.set()
        plain_cut(addresses)

    def receive(self: Proposal) -> Callable[[], list[float]]:
        read = plain(self)
        if next(commits) == STEP:
            (directory / f"reduced-{own_rank}").touch()
            # Wait for all ranks: what a rank had still to send would be lost with its connections.
            wait_until(
                "the others", lambda: len(list(directory.glob("reduced-*"))) == 3, every=0.002
            )
            if own_rank == int(os.environ[DYING]):
                os.kill(os.getpid(), signal.SIGKILL)
            if LATE in os.environ:
                wait_until("the order to leave", channel.is_over, every=0.002)
            if cut.wait(_MOMENT_SECONDS) if LATE in os.environ else own_rank == 1:
                raise RuntimeError("Connection closed by peer: the sum did not arrive")
        return read

    Proposal.receive = receive  # type: ignore[method-assign]
    process_group.cut_off = cut_off
