"""Registers agents by their hellos: who is refused, who takes a place, what a hello adds. Pure."""

from __future__ import annotations

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration
from regroup_trainer.coordinator.generation_end import repeat_order
from regroup_trainer.coordinator.membership import Member
from regroup_trainer.coordinator.reports import on_report
from regroup_trainer.coordinator.reserved_numbers import ReservedNumbers
from regroup_trainer.protocol.agent_messages import Hello
from regroup_trainer.protocol.coordinator_messages import Begin, Decide, Exit, Refused, Welcome


def register(state: State, numbers: ReservedNumbers, hello: Hello, now: float) -> None:
    """Answer a hello, and make its agent a member unless it is refused or released."""
    if hello.highest is not None and hello.highest.term > state.term:
        reason = (
            f"this is the coordinator of term {state.term}, but term {hello.highest.term} has begun"
        )
        state.send(hello.member, Refused(reason=reason, final=False))
        return
    exit_order = _exit_order(state, hello)
    if exit_order is None and (why := _why_wait(state, hello, now)):
        state.send(hello.member, Refused(reason=why, final=False))
        return
    state.send(hello.member, Welcome(term=state.term))
    if exit_order is not None:
        state.send(hello.member, exit_order)
        return
    _enroll(state, hello, now)
    _learn(state, numbers, hello)
    _bring_up_to_date(state, hello, now)


def resync(state: State, hello: Hello, now: float) -> None:
    """A member of the current generation is back: repeat what the old connection may have lost, and
    what it reported before this coordinator adopted the generation.
    """
    member = state.members[hello.member]
    if hello.progress is not None:
        on_report(state, hello.progress, member, now)
    for report in (*hello.busy, *hello.ended, *member.early.values()):
        on_report(state, report, member, now)
    member.early.clear()
    current = state.current
    if current is None:
        return
    if current.record.members[0].member == hello.member:
        current.save_asked = None  # a request that has no answer yet is passed again
    _repeat_end(state, current, hello.member, now)


def _repeat_end(state: State, current: CurrentGeneration, member: str, now: float) -> None:
    """Send a member what it was sent, or would have been, to end the current generation."""
    if current.leave_order is not None:
        repeat_order(state, current, current.leave_order, member, now)
    elif current.decision is not None and current.record.members[0].member == member:
        state.send(member, Decide(generation=current.number, decision=current.decision))


def _exit_order(state: State, hello: Hello) -> Exit | None:
    if state.outcome is not None:
        return Exit(code=state.outcome.exit_code, reason=state.outcome.message)
    if hello.member in state.ended_pods:
        return Exit(code=0, reason="Kubernetes reports that its pod has ended")
    if hello.member in state.replaced:
        same_index = (one for one in state.members.values() if one.hello.index == hello.index)
        holder = next(same_index, None)
        if holder is not None and holder.name != hello.member:
            return Exit(code=0, reason=f"replaced by {holder.hello.pod}")
    return None


def _why_wait(state: State, hello: Hello, now: float) -> str:
    """Why a second agent of an index has to wait; empty when it may take the place.

    The operator makes a replacement only for an agent that is gone, or leaving. But a request for a
    pod that timed out may be executed later, beside the next one. While the first is responsive,
    nothing is gained by the second, and a generation would be lost. The agent tries again until it
    may. A first one whose heartbeats may wait unread is not unresponsive.
    """
    first, known = _rival(state, hello), min(now, state.read_until)
    if first is None or not first.is_responsive(state.desired, known):
        return ""
    if _has_ranks(state, hello) and not _has_ranks(state, first.hello):
        return ""
    return (
        f"{first.hello.pod} on node {first.hello.node} is worker {hello.index} already, "
        f"and is responsive: {hello.pod} takes over when it is not"
    )


def _rival(state: State, hello: Hello) -> Member | None:
    """The other agent of this index, if it means to stay."""
    first = state.members.staying.get(hello.index)
    return first if first is not None and first.name != hello.member else None


def _has_ranks(state: State, hello: Hello) -> bool:
    """Whether an agent has a place in the current generation, or in the one that it reports to a
    coordinator that has just started.
    """
    record = state.current.record if state.current else hello.record
    return record is not None and record.place_of(hello.member) is not None


def _enroll(state: State, hello: Hello, now: float) -> None:
    """Give the index to this agent. A former one that is leaving is still needed for the agreed end
    of its generation; it is released after that.
    """
    if rival := _rival(state, hello):
        state.replaced.add(rival.name)
        state.lose(rival, f"replaced by {hello.pod}", now)
    known = state.members.get(hello.member)
    member = Member(hello=hello, last_seen=now, snapshots=hello.snapshots)
    if known is not None:
        member.leaving, member.step = known.leaving, known.step
    state.enroll(member)
    former = state.lost_members.pop(hello.index, None)
    if former is not None and former[0].member != hello.member:
        state.replaced.add(former[0].member)


def _learn(state: State, numbers: ReservedNumbers, hello: Hello) -> None:
    """Take over what an agent knows better than a coordinator that has just started."""
    numbers.on_seen(hello.highest)
    if hello.record is not None and hello.record.desired.revision > state.desired.revision:
        state.desired = hello.record.desired
        state.account.merge(state.desired.seed)
    if hello.checkpoint is not None and (
        state.checkpoint is None or hello.checkpoint.time > state.checkpoint.time
    ):
        state.checkpoint = hello.checkpoint


def _bring_up_to_date(state: State, hello: Hello, now: float) -> None:
    """Resync a member of the current generation; begin it where ranks of another may still run.

    A member that lacks its record has lost what followed the Begin, too.
    """
    current = state.current
    if current is None:
        return
    if hello.record is not None and hello.record.number == current.number:
        resync(state, hello, now)
        return
    is_member = current.position_of(hello.member) is not None
    if is_member or hello.record is not None:
        state.send(hello.member, Begin(record=current.record))
    if is_member:
        _repeat_end(state, current, hello.member, now)
