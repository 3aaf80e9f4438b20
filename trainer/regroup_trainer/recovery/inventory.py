"""Which state the ranks of a new generation continue, from what each of them holds in memory. Pure.

Each rank learns a commit on its own. So when a generation breaks, some ranks may have applied the
last step while others were only prepared for it. A prepared rank can apply the step once any rank
knows its commit. Ranks that are behind or new get the state from a rank that holds the same shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.step.commit import Commit


@dataclass(frozen=True)
class StateInventory:
    """What one rank of the new generation holds."""

    shard: int
    """The part of the whole state that it holds in the new generation."""
    generation: GenerationNumber | None = None
    """The generation that its state belongs to; None: it holds nothing of use."""
    step: int = 0
    """Steps that are wholly applied."""
    prepared: bool = False
    """Whether it holds the reduced gradients of the next step."""
    commit: Commit | None = None
    """The commit of the last step that it applied in that generation, if there was one."""
    unused: frozenset[GenerationNumber] = frozenset()
    """Later generations that it entered without training in them. These cannot have committed
    anything, because a commit needs all ranks.
    """


@dataclass(frozen=True)
class Agreement:
    """What all ranks do; the same on each of them."""

    generation: GenerationNumber
    """The generation that is continued."""
    step: int
    """The step after which training goes on."""
    commit: Commit | None
    """The commit of `step`, for the ranks that complete it."""
    completing: frozenset[int]
    """Ranks that are prepared for `step` and apply it now."""
    transfers: tuple[tuple[int, int], ...]
    """(source, destination): ranks between which the state is copied."""
    unused: frozenset[GenerationNumber] = frozenset()
    """Later generations that may have begun on the volume, but have committed nothing."""

    @property
    def receivers(self) -> frozenset[int]:
        """Ranks whose state is overwritten by that of another."""
        return frozenset(destination for _, destination in self.transfers)


def agree(inventories: Sequence[StateInventory]) -> Agreement | None:
    """The agreement of all ranks, whose inventories are in rank order; None when no rank holds some
    part of the state.

    Only states of the newest generation count: an older one may belong to a line that was abandoned
    since.
    """
    newest = max(
        (one.generation for one in inventories if one.generation is not None), default=None
    )
    if newest is None:
        return None
    held = {rank: one for rank, one in enumerate(inventories) if one.generation == newest}
    step = max(one.step for one in held.values())
    commit = next((one.commit for one in held.values() if one.step == step and one.commit), None)
    completing = {
        rank for rank, one in held.items() if one.step == step - 1 and one.prepared and commit
    }
    owners = [rank for rank, one in held.items() if one.step == step or rank in completing]
    transfers = _transfers(inventories, owners)
    if transfers is None:
        return None
    unused = frozenset(number for one in inventories for number in one.unused if number > newest)
    return Agreement(newest, step, commit, frozenset(completing), transfers, unused)


def _transfers(
    inventories: Sequence[StateInventory], owners: list[int]
) -> tuple[tuple[int, int], ...] | None:
    """Who sends to whom, spread evenly over the owners of each shard; None when a shard has no
    owner.
    """
    owning = frozenset(owners)
    receivers = [rank for rank in range(len(inventories)) if rank not in owning]
    sources = {shard: cycle(ranks) for shard, ranks in _sources(inventories, owners).items()}
    if any(inventories[rank].shard not in sources for rank in receivers):
        return None
    return tuple((next(sources[inventories[rank].shard]), rank) for rank in receivers)


def _sources(inventories: Sequence[StateInventory], owners: list[int]) -> dict[int, list[int]]:
    """The owners of each shard that may send it.

    A rank that completes the step only now may hold older copies of a program's other objects, so
    it sends only where no rank had applied the step.
    """
    newest: dict[int, int] = {}
    for owner in owners:
        one = inventories[owner]
        newest[one.shard] = max(newest.get(one.shard, one.step), one.step)
    sources: dict[int, list[int]] = {shard: [] for shard in newest}
    for owner in owners:
        if inventories[owner].step == newest[inventories[owner].shard]:
            sources[inventories[owner].shard].append(owner)
    return sources
