"""The coordinator's state in the words of the contract: phase, message, status. Reads only."""

from __future__ import annotations

from regroup_trainer.contract import (
    CoordinatorPhase,
    CoordinatorStatus,
    Decision,
    GenerationRecord,
    Hello,
    MemberStatus,
)
from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.formation import wanted_workers
from regroup_trainer.coordinator.world import World


def make_status(core: Coordinator, sequence: int) -> CoordinatorStatus:
    """What GET /v1/status answers."""
    record = core.world.record if core.world else None
    return CoordinatorStatus(
        term=core.term,
        sequence=sequence,
        revision=core.desired.revision,
        phase=phase_of(core),
        message=message_of(core),
        generation=record.number if record else None,
        world_size=record.world_size if record and core.world and core.world.alive else 0,
        members=(*_here(core, record), *_lost(core)),
        progress=core.progress,
        total_steps=core.desired.train.training.steps,
        evaluation=core.evaluation,
        checkpoint=core.checkpoint,
        ledger=core.account.ledger(),
        recoveries=core.recoveries.records(),
        events=core.journal.events(),
        verdict=core.verdict,
    )


def phase_of(core: Coordinator) -> CoordinatorPhase:
    """In one word."""
    if core.verdict is not None:
        return core.verdict.outcome
    world = core.world
    if world is None:
        return "waiting"
    if not world.alive:
        return "resizing" if world.broken is None else "recovering"
    if world.decision is not None:
        return "stopping" if world.decision == Decision.STOP else "resizing"
    if world.running:
        return "running"
    if world.follows is None:
        return "starting"
    return "resizing" if world.follows.cause == "resize" else "recovering"


def message_of(core: Coordinator) -> str:
    """What it does now, or why it is not training: one sentence."""
    if core.verdict is not None:
        return core.verdict.message
    world = core.world
    if world is None:
        return core.waiting_for
    if world.broken is not None:
        return f"{world.broken.message}; {core.waiting_for}"[:4096] if world.settled else world.broken.message
    if world.ended:
        return core.waiting_for
    if world.change is not None:
        return f"saving, then a new world: {world.change.reason}"
    if not world.running:
        return f"generation {world.number} is starting on {_workers(world)}"
    return _training(core, world)


def _training(core: Coordinator, world: World) -> str:
    step = world.progress.step if world.progress else 0
    text = f"training: step {step} of {core.desired.train.training.steps} on {_workers(world)}"
    wanted = wanted_workers(core.desired)
    if len(world.record.members) >= wanted:
        return text
    why = "; ".join(f"{hello.pod} was lost: {why}" for hello, why in core.lost_members.values())
    return f"{text} of {wanted} wanted" + (f" ({why})" if why else "")


def _workers(world: World) -> str:
    count = len(world.record.members)
    return f"{count} worker{'s' if count != 1 else ''}"


def _here(core: Coordinator, record: GenerationRecord | None) -> list[MemberStatus]:
    members = sorted(core.members.values(), key=lambda member: member.hello.index)
    return [_member(m.hello, record, m.step, "") for m in members]


def _lost(core: Coordinator) -> list[MemberStatus]:
    return [_member(hello, None, 0, why) for _index, (hello, why) in sorted(core.lost_members.items())]


def _member(hello: Hello, record: GenerationRecord | None, step: int, lost: str) -> MemberStatus:
    place = record.place_of(hello.member) if record else None
    return MemberStatus(
        member=hello.member,
        index=hello.index,
        pod=hello.pod,
        node=hello.node,
        rank=place.first_rank if place else None,
        step=step,
        lost=lost,
    )
