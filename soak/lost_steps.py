"""Which steps were lost: by the history, by what a soak itself saw of ranks, and by what the status
admits. Pure.

The history lacks the lines that were in memory when their rank died, and all while the volume takes
none. So a soak reads each second what ranks have committed (`soak/commits.py`). What the status
calls unflushed excuses nothing: it is counted as lost like any other step, and compared with what
was seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from soak.evidence import Evidence, Sample
from soak.records import Link, Number
from soak.replay import Loss, Replay, chain

REPORT_SECONDS = 3.0
"""A report of ranks that all died may be so old: no status can know of later steps."""


@dataclass(frozen=True)
class _Begin:
    """A generation, and what is known to have been committed before it."""

    link: Link
    written: int
    """The newest step in the history of the generations before."""
    unflushed: int
    """Steps after that, by the status."""
    seen: tuple[Sample, ...]
    """Commits of ranks since the generation before had begun."""

    @property
    def claimed(self) -> int:
        """The newest step that history and status know of."""
        return max(self.written, self.link.resumed_from) + self.unflushed


def losses(evidence: Evidence, found: Replay) -> Iterator[Loss]:
    """For each generation that resumed below a step known to be committed, what it lost."""
    for begin in _begins(evidence, found):
        link, highest = begin.link, max((one.step or 0 for one in begin.seen), default=0)
        known = max(begin.claimed, highest)
        if known > link.resumed_from:
            yield Loss(link.generation, known, link.resumed_from, link.checkpoint, link.time)


def hidden(evidence: Evidence, found: Replay) -> Iterator[str]:
    """A sentence for each generation whose losses the status makes smaller than what was seen, and
    for unflushed steps that belong to no generation, so that nobody counts them.
    """
    begins = tuple(_begins(evidence, found))
    for begin in begins:
        newest = max((one.time for one in begin.seen), default=0.0)
        early = (one.step or 0 for one in begin.seen if one.time <= newest - REPORT_SECONDS)
        step, link = max(early, default=0), begin.link
        if step > begin.claimed:
            yield (
                f"step {step} was seen to be committed before generation {link.generation} resumed "
                f"from step {link.resumed_from}; the history ends at step {begin.written}, and the "
                f"status knows of {begin.unflushed} unflushed steps"
            )
    rest = unflushed(evidence.recoveries) - sum(begin.unflushed for begin in begins)
    if rest:
        yield f"the status calls {rest} steps unflushed of generations that never began"


def generation_of(recovery: Mapping[str, Any]) -> Number | None:
    """The generation that a recovery of the status led to."""
    match = re.fullmatch(r"(\d+)\.(\d+)", str(recovery.get("generation", "")))
    return (int(match[1]), int(match[2])) if match else None


def unflushed(recoveries: Iterable[Mapping[str, Any]]) -> int:
    """Steps that no history has, by recoveries of the status."""
    return sum(int(one.get("unflushedSteps", 0)) for one in recoveries)


def _begins(evidence: Evidence, found: Replay) -> Iterator[_Begin]:
    links = chain(evidence.records)[0]
    for before, link in pairwise([None, *links]):
        assert link is not None
        since = before.time if before else link.time  # nothing was made before the first one
        seen = (one for one in evidence.commits or () if since <= one.time < link.time)
        first = before.generation if before else (0, 0)
        claims = (
            one
            for one in evidence.recoveries
            if first < (generation_of(one) or (0, 0)) <= link.generation
        )
        yield _Begin(link, found.written[link.generation], unflushed(claims), tuple(seen))
