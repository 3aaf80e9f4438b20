"""Planned ends of a running generation, decided from what is desired and who is here. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from regroup_trainer.coordinator.current_generation import CurrentGeneration, Transition
from regroup_trainer.coordinator.formation import choose, last_holders
from regroup_trainer.coordinator.membership import Member
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.generation import Decision

AGREE_SECONDS = 60.0
"""Ranks that report nothing for so long after a planned decision are ended by force."""
UNMANAGED_SECONDS = 1.0
"""The same for a program without a Session, whatever it reports: it receives no decisions."""


def planned_transition(
    current: CurrentGeneration, members: Mapping[str, Member], desired: Desired, node: str
) -> Transition | None:
    """The transition that is wanted now; None when the generation is as it should be."""
    if desired.suspend:
        return Transition(Decision.STOP, "preemption", "the job is to be suspended")
    leaving = [place for place in current.record.members if _leaves(members.get(place.member))]
    if leaving and len(leaving) == len(current.record.members):
        reason = f"all workers received {_sigterm(desired)}"
        return Transition(Decision.STOP, "preemption", reason, leaving[0])
    if leaving:
        reason = f"worker {leaving[0].pod} on node {leaving[0].node} received {_sigterm(desired)}"
        staying = {name for name, member in members.items() if member.leaving is None}
        takes_a_part_along = last_holders(current.record, staying)
        decision = Decision.RELOAD if takes_a_part_along else Decision.LEAVE
        return Transition(decision, "preemption", reason, leaving[0])
    if not current.running and not current.unmanaged:
        return None
    return _resize(current, members, desired, node) or _new_configuration(current, desired)


def _sigterm(desired: Desired) -> str:
    """The signal, and who usually sends it. A run on one machine has no pods."""
    by_kubelet = " (the pod is being deleted: a drain, an eviction, or by hand)"
    return f"SIGTERM{'' if desired.namespace == 'local' else by_kubelet}"


def _leaves(member: Member | None) -> bool:
    return member is not None and member.leaving is not None


def _resize(
    current: CurrentGeneration, members: Mapping[str, Member], desired: Desired, node: str
) -> Transition | None:
    here = {place.member for place in current.record.members}
    candidates = [
        member.hello
        for name, member in members.items()
        if member.leaving is None and (name in here or member.closed_at is None)
    ]
    chosen = {hello.member: hello for hello in choose(candidates, current.record, desired, node)}
    if not chosen or chosen.keys() == here:
        return None
    joining = [hello.pod for name, hello in chosen.items() if name not in here]
    leaving = [place.pod for place in current.record.members if place.member not in chosen]
    parts = [
        f"{', '.join(joining)} joins" if joining else "",
        f"{', '.join(leaving)} goes" if leaving else "",
    ]
    return Transition(Decision.LEAVE, "resize", " and ".join(part for part in parts if part))


def _new_configuration(current: CurrentGeneration, desired: Desired) -> Transition | None:
    old = current.record.desired
    if (old.train, old.script, old.checkpoint) == (
        desired.train,
        desired.script,
        desired.checkpoint,
    ):
        return None
    return Transition(Decision.RELOAD, "resize", "the training configuration was changed")
