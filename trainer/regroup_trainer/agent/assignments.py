"""Which rank each process of an agent becomes in a generation, and with how many threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from regroup_trainer.protocol.generation import Assignment, GenerationRecord


def make_assignments(
    record: GenerationRecord,
    ranks: Sequence[int],
    channel: Path,
    snapshots: str,
    free_slots: Sequence[int],
) -> list[Assignment]:
    """One assignment for each rank that runs here, in order of their local ranks.

    `channel` is the agent's socket, `snapshots` the folder of shared snapshots, and `free_slots`
    the slot that each rank may write first.
    """
    return [
        Assignment(
            record=record,
            rank=rank,
            local_rank=local_rank,
            channel=str(channel),
            snapshots=snapshots,
            free_slot=free_slots[local_rank],
        )
        for local_rank, rank in enumerate(ranks)
    ]


def threads_per_rank(local_ranks: int, own_program: bool) -> int:
    """Threads for the tensor operations of a rank.

    OMP_NUM_THREADS if the user has set it. Else the built-in trainer takes an equal share of the
    CPUs, and a program of the user's what it would have under torchrun: one thread beside other
    ranks, all CPUs alone.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    if own_program and local_ranks > 1:
        return 1
    return max(1, len(os.sched_getaffinity(0)) // local_ranks)
