"""Reports stragglers: a generation commits steps only as fast as its slowest rank. Pure."""

from __future__ import annotations

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration
from regroup_trainer.protocol.job_status import Straggler

CHECK_SECONDS = 1.0
RANKS_A_SECOND = 8192
"""More ranks than that are checked less often."""
MOST_REPORTED = 64


def check_stragglers(state: State, current: CurrentGeneration, now: float) -> None:
    """Emit an event for each rank that has become a straggler."""
    pause = max(CHECK_SECONDS, current.world_size / RANKS_A_SECOND)
    if now - current.stragglers_checked_at < pause:
        return
    current.stragglers_checked_at = now
    for rank in current.pace.check(now, state.desired.straggler_percent / 100):
        found = _straggler(current, rank)
        text = (
            f"rank {rank} on {found.pod} ({found.node}) computes {found.percent} % longer than the "
            "median rank"
        )
        state.emit(now, "StragglerDetected", text, "Warning")


def stragglers_of(current: CurrentGeneration) -> tuple[Straggler, ...]:
    """The stragglers, the slowest first, at most `MOST_REPORTED`."""
    found = [_straggler(current, rank) for rank in current.pace.stragglers]
    return tuple(sorted(found, key=lambda straggler: -straggler.percent)[:MOST_REPORTED])


def _straggler(current: CurrentGeneration, rank: int) -> Straggler:
    place = current.place_of_rank(rank)
    assert place is not None, f"generation {current.number} has no rank {rank}"
    percent = current.pace.stragglers[rank]
    return Straggler(
        rank=rank, member=place.member, pod=place.pod, node=place.node, percent=percent
    )
