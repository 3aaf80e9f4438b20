"""Joining and leaving the process group of a generation."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from functools import cached_property

import torch

from regroup_trainer.parallel import process_group
from regroup_trainer.parallel.mesh import disconnect, forget_meshes
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.protocol.rank_messages import Parked
from regroup_trainer.rank.busy_reports import BusyReports
from regroup_trainer.recovery.resident_state import ResidentState
from regroup_trainer.step.stepper import Stepper

_COMMIT_SECONDS = 0.1
"""How long leaving waits for a commit that is on its way. With more ranks than cores an all-reduce
takes some 10 ms.
"""
_POLL_SECONDS = 0.002


@dataclass(frozen=True)
class JoinedGeneration:
    """A generation whose process group this rank has joined."""

    assignment: Assignment
    channel: Channel
    group: GenerationGroup
    began: float
    """When (monotonic) this rank began to enter the generation."""
    joined_at: float = field(default_factory=time.monotonic)
    """When (monotonic) it had joined the process group."""

    @cached_property
    def busy(self) -> BusyReports:
        """What it reports before its first step."""
        return BusyReports(self.assignment, self.channel)


def join(assignment: Assignment, channel: Channel, began: float | None = None) -> JoinedGeneration:
    """Join the process group; returns when all ranks have. `began` is now by default.

    When the generation is over, the connections to the other ranks are cut, so that a collective
    which waits for a peer raises.

    Raises what `is_peer_loss` recognises when the others do not come.
    """
    began = time.monotonic() if began is None else began
    channel.when_over(
        assignment.record.number,
        lambda: process_group.cut_off(process_group.addresses_of(assignment)),
    )
    return JoinedGeneration(assignment, channel, process_group.join(assignment), began)


def await_commit_before_cut_off(joined: JoinedGeneration, stepper: Stepper) -> None:
    """From now on a commit that is on its way may arrive before the connections are cut.

    A rank that is dead may have applied that step, and may have sent all that the others need to
    apply it too.
    """

    def leave() -> None:
        until = time.monotonic() + _COMMIT_SECONDS
        while stepper.proposal is not None and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        process_group.cut_off(process_group.addresses_of(joined.assignment))

    joined.channel.when_over(joined.assignment.record.number, leave)


def park(assignment: Assignment, channel: Channel, resident: ResidentState) -> None:
    """Leave the process group of a broken generation and report the state that stays in memory.

    The channel then gives the next assignment. Call it where no exception is being handled: the
    frames of an exception keep the process group alive.
    """
    process_group.hold(process_group.addresses_of(assignment))
    forget_process_group()
    channel.send(
        Parked(
            generation=assignment.record.number, rank=assignment.rank, retained=resident.retained()
        )
    )


def is_generation_lost(error: Exception, channel: Channel) -> bool:
    """Whether an error means that the generation is over, and not that this rank did wrong.

    After connections were cut, any error may follow from that.
    """
    return process_group.is_peer_loss(error) or channel.is_over()


def forget_process_group() -> None:
    """Close the process group without waiting for anybody, and clear torch's caches of meshes."""
    groups = process_group.abandon()
    # Wrappers refer to the group in cycles; DDP refuses a module whose former wrapper still lives.
    gc.collect()
    process_group.end_later([*groups, *disconnect()])
    forget_meshes()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
