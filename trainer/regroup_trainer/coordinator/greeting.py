"""Agents that say hello: who is refused, who takes a place, and what a new coordinator learns from them."""

from __future__ import annotations

from regroup_trainer.contract import Begin, Decide, Exit, Hello, Refused, Welcome
from regroup_trainer.coordinator.claimed_numbers import ClaimedNumbers
from regroup_trainer.coordinator.endings import ask_to_leave
from regroup_trainer.coordinator.membership import Member
from regroup_trainer.coordinator.reports import hear
from regroup_trainer.coordinator.state import State


def greet(state: State, numbers: ClaimedNumbers, hello: Hello, now: float) -> None:
    """Answer a hello."""
    if hello.highest is not None and hello.highest.term > state.term:
        reason = f"this is the coordinator of term {state.term}, but term {hello.highest.term} has begun"
        state.send(hello.member, Refused(reason=reason, final=False))
        return
    state.send(hello.member, Welcome(term=state.term))
    dismissal = _dismissal(state, hello)
    if dismissal is not None:
        state.send(hello.member, dismissal)
        return
    _enroll(state, hello, now)
    _learn(state, numbers, hello)
    _place(state, hello, now)


def echo(state: State, hello: Hello, now: float) -> None:
    """A member of the current world is back: take over what the connection may have lost, in both directions."""
    member = state.members[hello.member]
    if hello.progress is not None:
        hear(state, hello.progress, member, now)
    for end in hello.ended:
        hear(state, end, member, now)
    world = state.world
    if world is not None and world.dissolved is not None:
        ask_to_leave(state, world, hello.member, now)
    elif world is not None and world.decision is not None and world.record.members[0].member == hello.member:
        state.send(hello.member, Decide(generation=world.number, decision=world.decision))


def _dismissal(state: State, hello: Hello) -> Exit | None:
    if state.verdict is not None:
        return Exit(code=state.verdict.exit_code, reason=state.verdict.message)
    holder = next((member for member in state.members.values() if member.hello.index == hello.index), None)
    if hello.member in state.replaced and holder is not None and holder.name != hello.member:
        return Exit(code=0, reason=f"replaced by {holder.hello.pod}")
    return None


def _enroll(state: State, hello: Hello, now: float) -> None:
    """The newest agent of an index holds it: the operator makes a replacement only for one that is gone, or going.

    One that was asked to leave is still needed for the agreed end of its world; it is let go after that.
    """
    same = [m for m in state.members.values() if m.hello.index == hello.index and m.name != hello.member]
    for rival in [m for m in same if m.leaving is None]:
        state.replaced.add(rival.name)
        state.lose(rival, f"replaced by {hello.pod}", now)
    known = state.members.get(hello.member)
    member = Member(hello=hello, heard=now, snapshots=hello.snapshots)
    if known is not None:
        member.leaving, member.step = known.leaving, known.step
    state.members[hello.member] = member
    former = state.lost_members.pop(hello.index, None)
    if former is not None and former[0].member != hello.member:
        state.replaced.add(former[0].member)


def _learn(state: State, numbers: ClaimedNumbers, hello: Hello) -> None:
    """An agent may know better than a coordinator that has just started."""
    numbers.seen(hello.highest)
    if hello.record is not None and hello.record.desired.revision > state.desired.revision:
        state.desired = hello.record.desired
        state.account.merge(state.desired.seed)
    if hello.checkpoint is not None and (state.checkpoint is None or hello.checkpoint.time > state.checkpoint.time):
        state.checkpoint = hello.checkpoint


def _place(state: State, hello: Hello, now: float) -> None:
    """Tell a member of the current world, or one with leftovers of another, where it stands."""
    if state.world is None:
        return
    if hello.record is not None and hello.record.number == state.world.number:
        echo(state, hello, now)
    elif state.world.record.place_of(hello.member) is not None or hello.record is not None:
        state.send(hello.member, Begin(record=state.world.record))
