"""Continuing the state that lives in the memory of a generation's ranks, without the volume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from regroup_trainer.parallel.mesh import arrange
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.recovery.inventory import Agreement, StateInventory, agree
from regroup_trainer.recovery.resident_state import ResidentState
from regroup_trainer.recovery.restorer import Restorer
from regroup_trainer.recovery.step_log import StepLog
from regroup_trainer.recovery.transfer import receive, send
from regroup_trainer.step.agreement import all_gather
from regroup_trainer.step.state import TrainState
from regroup_trainer.step.updater import StepResult

Rebuild = Callable[[GenerationGroup, ResidentState | None], TrainState]
"""Wraps the resident state for a new group; without one, makes a state for a peer to fill."""


@dataclass(frozen=True)
class LiveState:
    """A state that goes on in a new generation."""

    state: TrainState
    agreement: Agreement
    log: StepLog


def continue_live_state(
    restorer: Restorer,
    config: TrainConfig,
    resident: ResidentState | None,
    rebuild: Rebuild,
    on_completed: Callable[[StepResult], None],
) -> LiveState | None:
    """Go on from the state in the ranks of this generation; None when a snapshot or a checkpoint
    has to be restored instead. All ranks call it and get the same answer.

    `on_completed` is called when this rank applies a step that another one saw committed. Raises
    StorageError; FencedError when a newer generation has begun; c10d's errors when a peer is lost.
    """
    if restorer.record.restored_from != "Peers":
        return None
    agreement = _agree(restorer, config, resident)
    if agreement is None:
        return None
    rank = restorer.group.rank
    if resident is not None and agreement.commit and rank in agreement.completing:
        on_completed(resident.complete(agreement.commit, restorer.identity.data))
    state = rebuild(restorer.group, resident)
    if resident is not None:
        resident.updater.drop_gradients()  # they belonged to the old wrapper
        if rank in agreement.receivers:
            resident.updater.begin_overwrite()
    log = _exchange(state, resident.log if resident else StepLog(), agreement, rank)
    return LiveState(state, agreement, log) if log else None


def _agree(
    restorer: Restorer, config: TrainConfig, resident: ResidentState | None
) -> Agreement | None:
    shard = arrange(config.parallelism, restorer.group).part
    if resident is not None:
        resident.enter(restorer.record.number)
    own = resident.inventory(shard, config) if resident else StateInventory(shard)
    agreement = agree(all_gather(own))
    return agreement if agreement and restorer.is_newest(agreement) else None


def _exchange(state: TrainState, log: StepLog, agreement: Agreement, rank: int) -> StepLog | None:
    """Copy the state to the ranks that lack it, with the steps that led to it.

    Returns this rank's log, None when some copy did not arrive as it was sent.
    """
    arrived = True
    for source, destination in agreement.transfers:
        if rank == source:
            send(state, log.steps, destination)
        elif rank == destination:
            arrived, steps = receive(state, source)
            log = StepLog(steps)
    return log if not agreement.transfers or all(all_gather(arrived)) else None
