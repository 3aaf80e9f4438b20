"""What a coordinator that has to go waits for. Pure."""

from __future__ import annotations

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.formation import least_workers


def has_agents_on_node(state: State) -> bool:
    """Whether an agent on the coordinator's node may leave as well, and has not announced it."""
    return any(
        member.hello.node == state.node and member.leaving is None
        for member in state.members.values()
    )


def somebody_leaves(state: State) -> bool:
    """Whether an agent waits for its agreed last step."""
    return any(member.leaving is not None for member in state.members.values())


def is_between(state: State) -> bool:
    """Whether a generation has ended, and there are workers enough for the next one."""
    if state.current is None or state.current.alive or state.outcome is not None:
        return False
    staying = [member for member in state.members.values() if member.leaving is None]
    return len(staying) >= least_workers(state.desired)
