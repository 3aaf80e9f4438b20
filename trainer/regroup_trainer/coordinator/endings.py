"""How worlds end: by agreement when another one is wanted, or broken, with a cause that is counted once."""

from __future__ import annotations

from regroup_trainer.contract import Decide, Exit, LeaveWorld
from regroup_trainer.coordinator.planned import HONOUR_SECONDS, SPEECHLESS_SECONDS, planned_change
from regroup_trainer.coordinator.restarts import Restarts, refusal
from regroup_trainer.coordinator.state import State
from regroup_trainer.coordinator.world import Break, World
from regroup_trainer.job_status import Verdict
from regroup_trainer.recovery import outlives_its_world

FREE_SECONDS, LONGEST_FREE_SECONDS = 1.0, 60.0
"""For the ranks of a broken world to leave it; longer where a step is: a rank that computes hears of it afterwards."""
STEPS = 2
"""It gets the time of so many."""
KILL_SECONDS = 0.5
"""For the agents to kill those that are stuck."""
SETTLE_SECONDS = 0.02
"""After a rank's end, time for the ends of its peers to be heard before the next world is formed."""


def steer(state: State, world: World, now: float) -> None:
    """Ask the ranks for an agreed end when another world is wanted; force it when they don't answer."""
    change = planned_change(world, state.members, state.desired, state.node)
    if change is not None and (world.decision is None or change.decision > world.decision):
        world.decision, world.change, world.decided = change.decision, change, now
        state.send(world.record.members[0].member, Decide(generation=world.number, decision=change.decision))
    patience = SPEECHLESS_SECONDS if world.speechless else HONOUR_SECONDS
    if world.change is not None and now - max(world.decided, world.heard) > patience:
        message = f"{world.change.reason}, but the ranks did not agree on an end within {patience:.0f} s"
        world.broken = Break(now, world.change.cause, message, world.change.place)


def settle(state: State, world: World, broken: Break, restarts: Restarts, now: float) -> float:
    """Once the first cause is certain, count it; returns how long to wait before the next world."""
    if not _is_certain(state, broken, now):
        return 0.0
    world.settled = True
    state.account.restart(broken.cause)
    if broken.cause == "hang":
        used, budget = state.account.used("hang") - 1, state.desired.max_hang_restarts
        if 0 <= budget <= used:
            _fail(state, broken, f"the budget of {budget} restarts after hangs is used up", now)
    elif broken.exit is None and not broken.provisional:
        return 0.0
    elif broken.cause == "application" and broken.exit is not None:
        state.detections.append(("application", 0.0))
        state.tell(now, "RankFailed", broken.message, "Warning")
        why = refusal(broken.exit, state.account.used("application") - 1, state.desired)
        if why is not None:
            _fail(state, broken, why, now)
    return restarts.pause(state.committed.step if state.committed else 0, state.desired)


def _is_certain(state: State, broken: Break, now: float) -> bool:
    if not broken.provisional:
        return broken.exit is None or now >= broken.time + SETTLE_SECONDS
    missed = any(member.is_suspect(state.desired, now) for member in state.members.values())
    return not missed and now >= broken.time + state.desired.heartbeat_milliseconds / 1000


def _fail(state: State, broken: Break, why: str, now: float) -> None:
    state.tell(now, "Failed", f"{broken.message}; {why}", "Warning")
    traceback, code = (broken.exit.message, broken.exit.exit_code) if broken.exit else ("", 1)
    message = f"{broken.message}; {why}\n{traceback}".strip()[:4096]
    state.conclude(Verdict(outcome="failed", message=message, exit_code=code or 1))


def dissolve(state: State, world: World, now: float) -> None:
    """Have the ranks of a broken world leave it: those that wait for a frozen peer would do so for ever."""
    world.dissolved = now
    for place in world.record.members:
        if place.member in state.members:
            ask_to_leave(state, world, place.member, now)


def ask_to_leave(state: State, world: World, member: str, now: float) -> None:
    """Have the ranks of one of its members leave a broken world."""
    world.dissolved = now
    stuck = world.broken.stuck if world.broken else None
    state.send(member, LeaveWorld(generation=world.number, seconds=free_seconds(world), stuck=stuck))


def free_seconds(world: World) -> float:
    """How long a rank may take to leave this world, which is broken. A program that hears no decision gets a signal,
    and where nothing else than that decision ends its world, as long as others get to honour it.
    """
    if world.speechless and world.change is not None:
        return HONOUR_SECONDS
    return min(LONGEST_FREE_SECONDS, max(FREE_SECONDS, STEPS * world.usual_step_seconds()))


def missed_survivor(state: State, world: World, now: float) -> int | None:
    """A rank that may live on, but has not said yet that it has left its broken world; None when all have."""
    if world.dissolved is None or not _may_outlive(world):
        return None
    if now >= world.dissolved + free_seconds(world) + KILL_SECONDS:
        return None
    told = world.kept.keys() | world.exits.keys() | world.finished.keys()
    here = [place for place in world.record.members if place.member in state.members]
    ranks = [rank for place in here for rank in place.own_ranks]
    return next((rank for rank in ranks if rank not in told), None)


def _may_outlive(world: World) -> bool:
    """A user's script does if it uses a Session; if not, its ranks end, which is told too."""
    desired = world.record.desired
    return bool(desired.script) or outlives_its_world(desired.train.parallelism)


def end_of(state: State, world: World | None, now: float) -> Break | None:
    """How the last world ended: broken, or by a planned change, which is counted here."""
    if world is None or world.broken is not None:
        return world.broken if world else None
    if world.change is None:
        return Break(now, "resize", "the ranks ended the world by agreement")
    state.account.restart(world.change.cause)
    return Break(now, world.change.cause, world.change.reason, world.change.place)


def dismiss(state: State, now: float) -> None:
    """Let those go who asked to, or are too many, once no living world needs them, nor one that is being left."""
    world = state.world
    leaving = world is not None and not world.alive and missed_survivor(state, world, now) is not None
    needed = world.record if world is not None and (world.alive or leaving) else None
    for name, member in list(state.members.items()):
        surplus = member.hello.index >= state.desired.workers and needed is not None
        if (member.leaving is None and not surplus) or (needed is not None and needed.place_of(name) is not None):
            continue
        state.send(name, Exit(code=0, reason=member.leaving or "the job was scaled down"))
        del state.members[name]
