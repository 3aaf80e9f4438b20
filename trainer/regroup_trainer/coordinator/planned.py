"""Planned changes of a running world: what is wanted instead, decided from the wish and who is here. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from regroup_trainer.contract import Decision, Desired
from regroup_trainer.coordinator.formation import choose
from regroup_trainer.coordinator.membership import Member
from regroup_trainer.coordinator.world import Change, World

HONOUR_SECONDS = 60.0
"""Ranks that tell nothing for so long after a planned decision are ended by force."""
SPEECHLESS_SECONDS = 1.0
"""The same for a program that has never told anything, and so hears no decision either."""


def planned_change(world: World, members: Mapping[str, Member], desired: Desired, node: str) -> Change | None:
    """The change that is wanted now, None when the world is as it should be."""
    if desired.suspend:
        return Change(Decision.STOP, "preemption", "the job is to be suspended")
    going = [place for place in world.record.members if _leaves(members.get(place.member))]
    if going and len(going) == len(world.record.members):
        return Change(Decision.STOP, "preemption", "all workers were asked to leave", going[0])
    if going:
        return Change(Decision.LEAVE, "preemption", f"worker {going[0].pod} was asked to leave", going[0])
    if not world.running and not world.speechless:
        return None
    return _resize(world, members, desired, node) or _new_configuration(world, desired)


def _leaves(member: Member | None) -> bool:
    return member is not None and member.leaving is not None


def _resize(world: World, members: Mapping[str, Member], desired: Desired, node: str) -> Change | None:
    here = {place.member for place in world.record.members}
    candidates = [
        member.hello
        for name, member in members.items()
        if member.leaving is None and (name in here or member.closed_at is None)
    ]
    chosen = {hello.member: hello for hello in choose(candidates, world.record, desired, node)}
    if not chosen or chosen.keys() == here:
        return None
    joining = [hello.pod for name, hello in chosen.items() if name not in here]
    leaving = [place.pod for place in world.record.members if place.member not in chosen]
    parts = [f"{', '.join(joining)} joins" if joining else "", f"{', '.join(leaving)} goes" if leaving else ""]
    return Change(Decision.LEAVE, "resize", " and ".join(part for part in parts if part))


def _new_configuration(world: World, desired: Desired) -> Change | None:
    old = world.record.desired
    if (old.train, old.script, old.checkpoint) == (desired.train, desired.script, desired.checkpoint):
        return None
    return Change(Decision.RELOAD, "resize", "the training configuration was changed")
