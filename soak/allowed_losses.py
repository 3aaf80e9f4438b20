"""How many steps a fault may cost: none while a whole copy of the state lives, else those since the
newest copy that was left. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from soak.evidence import Evidence, Hit, Kept
from soak.records import Link, Stored
from soak.replay import Loss, chain

HIT_SECONDS = 30.0
"""A fault explains what a generation that begins so soon after it has lost."""
SEEN_LATE_SECONDS = 5.0
"""So long after it was made, a step may be seen."""


def a_copy_lived(evidence: Evidence, loss: Loss) -> bool:
    """Whether the ranks that were not hit shortly before a loss hold the whole state together.

    False where only all ranks together hold it. Ranks at the same place of two copies hold the same
    part. They keep their numbers meanwhile, since a fault waits for the end of the recovery from
    the one before.
    """
    size = evidence.copy_size
    if size is None:
        return False
    recent = _recent_hits(evidence, loss)
    dead = frozenset[int]().union(*(hit.ranks for hit in recent))
    world = max([size, *(hit.size for hit in recent)])
    return len({rank % size for rank in range(world) if rank not in dead}) == size


def over_allowed(evidence: Evidence, loss: Loss) -> int:
    """Steps lost, without a whole copy in ranks, beyond what the copies outside them allow.

    Two bounds hold. What was left when the fault struck is known from outside: the files by which
    agents mark the shards that they hold, and the volume's checkpoints. No step before the newest
    of these may be made again. And a copy must come in time, whatever it was that was left: an
    interval after the one before, and one more if the ranks are killed while they copy. Torchrun's
    script does not go on before its save is whole. A job that begins anew had no checkpoint yet.
    Steps that are made while the volume takes no files come onto it an interval after it takes them
    again.
    """
    from_volume = loss.checkpoint or loss.resumed_from == 0
    interval = evidence.checkpoint_steps if from_volume else evidence.snapshot_steps
    late = loss.steps - interval * (1 if evidence.is_torchrun else 2)
    if from_volume:
        late -= sum(steps + interval for steps in _refused(evidence, loss))
    return max(0, late, newest_left(evidence, loss) - loss.resumed_from)


def _refused(evidence: Evidence, loss: Loss) -> Iterator[int]:
    """The lost steps that were made each time the volume took no files."""
    for start, end in evidence.refusals:
        made = range(_newest_commit(evidence, start), _newest_commit(evidence, end))
        steps = min(made.stop, loss.known) - max(made.start, loss.resumed_from)
        if start <= loss.time and steps > 0:
            yield steps


def _newest_commit(evidence: Evidence, moment: float) -> int:
    """The step that the ranks had committed last at that time; 0 where none was seen."""
    seen = [one for one in evidence.commits or () if one.time <= moment]
    return max(seen, key=lambda one: one.time).step or 0 if seen else 0


def newest_left(evidence: Evidence, loss: Loss) -> int:
    """The step of the newest whole copy outside the ranks that the faults before a loss have left;
    0 where none was seen.

    What was seen before the generation that broke had begun is too old to know.
    """
    links = _links_before(evidence, loss)
    recent = _recent_hits(evidence, loss)
    moment = max((hit.time for hit in recent), default=_last_step_seen(evidence, loss))
    seen = [one for one in evidence.kept if _began(links) < one.began and one.ended <= moment]
    gone = frozenset[str]().union(*(hit.pods for hit in recent))
    left = _left(seen[-1], gone) if seen else iter(())
    return max((one.step for one in left if _counts(one, links)), default=0)


def _left(kept: Kept, gone: frozenset[str]) -> Iterator[Stored]:
    yield from kept.checkpoints
    for snapshot in kept.snapshots:
        if all(holders - gone for holders in snapshot.holders):
            yield snapshot.stored


def _counts(stored: Stored, links: Sequence[Link]) -> bool:
    """Whether a copy belongs to the line of these generations."""
    numbers = [link.generation for link in links]
    if stored.generation not in numbers:
        return False
    later = links[numbers.index(stored.generation) + 1 :]
    return all(link.resumed_from >= stored.step for link in later)


def _recent_hits(evidence: Evidence, loss: Loss) -> list[Hit]:
    """Those that explain a loss: a recovery may take long. On a busy machine a fault strikes long
    after its time, so that the generation whose ranks it hits makes steps meanwhile.

    What was hit before all ranks had the state again explains nothing.
    """
    last = _last_step_seen(evidence, loss)
    began = max(_began(_links_before(evidence, loss)), last - HIT_SECONDS)
    late = [hit.time for hit in evidence.hits if hit.ranks and began < hit.time <= loss.time]
    since = min(loss.time - HIT_SECONDS, last - SEEN_LATE_SECONDS, *late)
    since = max(since, _restored(evidence, loss))
    return [hit for hit in evidence.hits if since <= hit.time <= loss.time]


def _restored(evidence: Evidence, loss: Loss) -> float:
    """When the newest generation before a loss began that has made a step: all its ranks make it,
    so each had the state. One without a step may have broken before it had.
    """
    made = {line.generation for lines in evidence.records.lines.values() for line in lines}
    return _began([link for link in _links_before(evidence, loss) if link.generation in made])


def _last_step_seen(evidence: Evidence, loss: Loss) -> float:
    """When the newest step that was seen before a loss was seen first; when the loss was, if none
    was seen.
    """
    earlier = _links_before(evidence, loss)
    seen = sorted(
        (sample.time, sample.step or 0)
        for sample in (*evidence.samples, *(evidence.commits or ()))
        if _began(earlier) < sample.time < loss.time
    )
    newest = min(loss.known, max((step for _, step in seen), default=0))
    return next((time for time, step in seen if step >= newest > 0), loss.time)


def _links_before(evidence: Evidence, loss: Loss) -> list[Link]:
    """The generations before the one that lost steps."""
    return [link for link in chain(evidence.records)[0] if link.generation < loss.generation]


def _began(links: Sequence[Link]) -> float:
    return links[-1].time if links else 0.0
