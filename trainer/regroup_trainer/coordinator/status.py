"""The coordinator's state in the words of the contract: phase, message, status. Reads only."""

from __future__ import annotations

from regroup_trainer.contract import Decision, GenerationRecord, Hello
from regroup_trainer.coordinator.formation import wanted_workers
from regroup_trainer.coordinator.state import State
from regroup_trainer.coordinator.stragglers import stragglers_of
from regroup_trainer.coordinator.world import World
from regroup_trainer.job_status import CoordinatorPhase, CoordinatorStatus, MemberStatus


def make_status(state: State, sequence: int) -> CoordinatorStatus:
    """What GET /v1/status answers."""
    record = state.world.record if state.world else None
    return CoordinatorStatus(
        term=state.term,
        sequence=sequence,
        revision=state.desired.revision,
        phase=phase_of(state),
        message=message_of(state),
        generation=record.number if record else None,
        world_size=record.world_size if record and state.world and state.world.alive else 0,
        spares=spares_of(state),
        members=(*_here(state, record), *_lost(state)),
        progress=state.progress,
        total_steps=_total_steps(state),
        evaluation=state.evaluation,
        checkpoint=state.checkpoint,
        ledger=state.account.ledger(),
        stragglers=stragglers_of(state.world) if state.world and state.world.alive else (),
        recoveries=state.recoveries.records(),
        events=state.journal.events(),
        verdict=state.verdict,
    )


def _total_steps(state: State) -> int:
    if state.desired.script:
        return state.world.total_steps if state.world else 0
    return state.desired.train.training.steps  # which may grow within a generation


def phase_of(state: State) -> CoordinatorPhase:
    """In one word."""
    if state.verdict is not None:
        return state.verdict.outcome
    world = state.world
    if world is None:
        return "waiting"
    if not world.alive:
        return "resizing" if world.broken is None else "recovering"
    if world.decision is not None:
        return "stopping" if world.decision == Decision.STOP else "resizing"
    if world.running or world.speechless:
        return "running"
    if world.follows is None:
        return "starting"
    return "resizing" if world.follows.cause == "resize" else "recovering"


def message_of(state: State) -> str:
    """What it does now, or why it is not training: one sentence."""
    if state.verdict is not None:
        return state.verdict.message
    world = state.world
    if world is None:
        return state.waiting_for
    if world.broken is not None:
        return f"{world.broken.message}; {state.waiting_for}"[:4096] if world.settled else world.broken.message
    if world.ended:
        return state.waiting_for
    if world.change is not None:
        return f"leaving generation {world.number} together, at the next step: {world.change.reason}"
    if world.speechless:
        return f"running {state.desired.script[0]} on {_workers(world)}{_missing(state, world)}"
    if not world.running:
        return f"generation {world.number} is starting on {_workers(world)}"
    return _training(state, world)


def _training(state: State, world: World) -> str:
    step, steps = world.progress.step if world.progress else 0, _total_steps(state)
    whole = f" of {steps}" if steps else ""
    doing = f"training: step {step}{whole}" if step < steps or not steps else f"saving the result of {steps} steps"
    return f"{doing} on {_workers(world)}{_missing(state, world)}{_waiting(state)}" + (
        f"; {state.failed_save}" if state.failed_save else ""
    )


def _missing(state: State, world: World) -> str:
    wanted = wanted_workers(state.desired)
    if len(world.record.members) >= wanted:
        return ""
    reasons = [f"{hello.pod} was lost: {why}" for hello, why in state.lost_members.values()]
    if state.desired.replica_group_size > 1 and (idle := _without_rank(state, world)):
        reasons.append(f"{', '.join(idle)} without a rank: its replica group is not whole")
    return f" of {wanted} wanted" + (f" ({'; '.join(reasons)})" if reasons else "")


def spares_of(state: State) -> int:
    """How many warm workers wait for a place; none while the world lacks members."""
    world = state.world
    if world is None or not world.alive or len(world.record.members) < wanted_workers(state.desired):
        return 0
    return len(_without_rank(state, world))


def _waiting(state: State) -> str:
    count = spares_of(state)
    return f", {count} spare{'s' if count > 1 else ''}" if count else ""


def _without_rank(state: State, world: World) -> list[str]:
    members = sorted(state.members.values(), key=lambda member: member.hello.index)
    return [member.hello.pod for member in members if world.record.place_of(member.name) is None]


def _workers(world: World) -> str:
    count = len(world.record.members)
    return f"{count} worker{'s' if count != 1 else ''}"


def _here(state: State, record: GenerationRecord | None) -> list[MemberStatus]:
    members = sorted(state.members.values(), key=lambda member: member.hello.index)
    return [_member(m.hello, record, m.step, "") for m in members]


def _lost(state: State) -> list[MemberStatus]:
    return [_member(hello, None, 0, why) for _index, (hello, why) in sorted(state.lost_members.items())]


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
