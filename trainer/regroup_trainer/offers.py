"""Rung L0: what ranks hold in memory when they meet in a new generation, and which state they go on from. Pure.

A commit is learned by each rank on its own, so some may have applied the last step while others were only prepared for
it when their world broke. Whoever is prepared can apply it too, once any rank knows its commit; the others, and those
who are new, get the state from a rank that holds the same part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regroup_trainer.commit import Commit
from regroup_trainer.contract import GenerationNumber


@dataclass(frozen=True)
class Offer:
    """What one rank of the new world holds."""

    shard: int
    """The part of the whole state that it shall hold."""
    generation: GenerationNumber | None = None
    """Where it was when its state was made; None: it holds nothing of use."""
    step: int = 0
    """Steps applied, with nothing half done."""
    prepared: bool = False
    """Whether it holds the reduced gradients of the step after that."""
    commit: Commit | None = None
    """Of the last step that it applied in that generation; None when there was none."""
    void: frozenset[GenerationNumber] = frozenset()
    """Later generations that it entered and never trained in: without it they cannot have committed anything."""


@dataclass(frozen=True)
class Agreement:
    """What all ranks do, the same for all of them."""

    generation: GenerationNumber
    """The one that is continued."""
    step: int
    commit: Commit | None
    """Of `step`, for those who complete it."""
    completing: frozenset[int]
    """Ranks that were prepared for `step` and apply it now."""
    transfers: tuple[tuple[int, int], ...]
    """(source, destination): ranks whose state is copied."""
    void: frozenset[GenerationNumber] = frozenset()
    """Later generations that may have begun, but have committed nothing."""


def agree(offers: Sequence[Offer]) -> Agreement | None:
    """From the offers of all ranks in rank order; None when some part of the state lives nowhere.

    Only states of the newest generation count: an older one may belong to a line that was abandoned since.
    """
    newest = max((offer.generation for offer in offers if offer.generation is not None), default=None)
    if newest is None:
        return None
    held = {rank: offer for rank, offer in enumerate(offers) if offer.generation == newest}
    step = max(offer.step for offer in held.values())
    commit = next((offer.commit for offer in held.values() if offer.step == step and offer.commit), None)
    completing = {rank for rank, offer in held.items() if offer.step == step - 1 and offer.prepared and commit}
    owners = [rank for rank, offer in held.items() if offer.step == step or rank in completing]
    transfers = _transfers(offers, owners)
    if transfers is None:
        return None
    void = frozenset(number for offer in offers for number in offer.void if number > newest)
    return Agreement(newest, step, commit, frozenset(completing), transfers, void)


def _transfers(offers: Sequence[Offer], owners: list[int]) -> tuple[tuple[int, int], ...] | None:
    """Who sends to whom, the work spread over the owners of each part; None when a part has no owner."""
    pairs = []
    sent = dict.fromkeys(owners, 0)
    for rank, offer in enumerate(offers):
        if rank in sent:
            continue
        sources = [owner for owner in owners if offers[owner].shard == offer.shard]
        if not sources:
            return None
        # A program's other objects may lag behind on a rank that completes the step only now.
        behind = {owner: offers[owner].step < max(offers[other].step for other in sources) for owner in sources}
        source = min(sources, key=lambda owner: (behind[owner], sent[owner]))
        sent[source] += 1
        pairs.append((source, rank))
    return tuple(pairs)
