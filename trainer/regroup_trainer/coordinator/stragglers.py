"""Stragglers: a world commits steps as fast as its slowest rank; who that is, is told. Reads `pace`."""

from __future__ import annotations

from regroup_trainer.coordinator.state import State
from regroup_trainer.coordinator.world import World
from regroup_trainer.job_status import Straggler

LOOK_SECONDS = 1.0
MOST_TOLD = 64


def look(state: State, world: World, now: float) -> None:
    """Tell of ranks that have become stragglers."""
    if now - world.looked < LOOK_SECONDS:
        return
    world.looked = now
    for rank in world.pace.look(now, state.desired.straggler_percent / 100):
        found = _straggler(world, rank)
        text = f"rank {rank} on {found.pod} ({found.node}) computes {found.percent} % longer than the median rank"
        state.tell(now, "StragglerDetected", text, "Warning")


def stragglers_of(world: World) -> tuple[Straggler, ...]:
    """The slow ranks, the slowest first, at most `MOST_TOLD`."""
    found = [_straggler(world, rank) for rank in world.pace.stragglers]
    return tuple(sorted(found, key=lambda straggler: -straggler.percent)[:MOST_TOLD])


def _straggler(world: World, rank: int) -> Straggler:
    place = world.record.place_of_rank(rank)
    assert place is not None, f"generation {world.number} has no rank {rank}"
    percent = world.pace.stragglers[rank]
    return Straggler(rank=rank, member=place.member, pod=place.pod, node=place.node, percent=percent)
