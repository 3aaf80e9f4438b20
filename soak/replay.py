"""Replays what a job wrote: which steps count, which were lost, and what is wrong with them. Pure.

It shares no code with the product, so that both cannot have the same fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from soak.records import Line, Link, Number, Records


@dataclass(frozen=True)
class Loss:
    """Steps that a generation made again."""

    generation: Number
    known: int
    """The newest step that was committed before it."""
    resumed_from: int
    checkpoint: bool
    """Whether it resumed from a checkpoint."""
    time: float = 0.0
    """When it began: seconds since the epoch."""

    @property
    def steps(self) -> int:
        """How many."""
        return self.known - self.resumed_from


@dataclass(frozen=True)
class Replay:
    """What counts of a job."""

    steps: Mapping[int, Line]
    lost: tuple[Loss, ...]
    """By the history alone."""
    mismatches: tuple[str, ...]
    """A sentence for each contradiction."""
    written: Mapping[Number, int]
    """Generation -> the newest step in the history of the generations before it."""


def replay(records: Records) -> Replay:
    """The steps that led to the newest generation's state, and what contradicts them."""
    links, contradictions = chain(records)
    mismatches = [f"unreadable history: {sentence}" for sentence in records.damaged]
    mismatches += contradictions
    steps: dict[int, Line] = {}
    lost: list[Loss] = []
    written: dict[Number, int] = {}
    for link in links:
        written[link.generation] = known = max(steps, default=0)
        if link.resumed_from < known:
            found = Loss(link.generation, known, link.resumed_from, link.checkpoint, link.time)
            lost.append(found)
        steps = {step: line for step, line in steps.items() if step <= link.resumed_from}
        _add(steps, link, records.lines.get(link.generation, ()), mismatches)
    mismatches += _holes(steps, records.gaps)
    mismatches += _batches(steps, {link.generation: link.batch for link in links})
    return Replay(steps, tuple(lost), tuple(mismatches), written)


def chain(records: Records) -> tuple[list[Link], list[str]]:
    """The lineage of the newest generation, oldest first; and a sentence for each contradiction."""
    found: list[Link] = []
    mismatches: list[str] = []
    number = max(records.links, default=None)
    while number is not None:
        link = records.links.get(number)
        if link is None:
            mismatches.append(f"the lineage names generation {number}, which has no record")
            break
        if link.parent is not None and link.parent >= number:
            mismatches.append(f"generation {number} has the parent {link.parent}, which is newer")
            break
        found.append(link)
        number = link.parent
    return found[::-1], mismatches


def _add(
    steps: dict[int, Line], link: Link, lines: tuple[Line, ...], mismatches: list[str]
) -> None:
    """Add what a generation's file says: first the steps that it repeats, then its own."""
    made: set[int] = set()
    for line in lines:
        own = line.generation == link.generation
        if own and line.step in made:
            mismatches.append(f"generation {link.generation} made step {line.step} twice")
        elif own and line.step <= link.resumed_from:
            mismatches.append(
                f"generation {link.generation} made step {line.step}, but resumed from step "
                f"{link.resumed_from}"
            )
        elif not own and line.step in steps and steps[line.step] != line:
            mismatches.append(
                f"generation {link.generation} repeats step {line.step} otherwise than generation "
                f"{steps[line.step].generation} wrote it"
            )
        elif own or line.step <= link.resumed_from:
            steps[line.step] = line
        if own:
            made.add(line.step)


def _holes(steps: Mapping[int, Line], gaps: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Steps and samples that are missing, or come again."""
    previous, position = 0, 0
    for step in sorted(steps):
        line = steps[step]
        missing = range(previous + 1, step)
        recorded = bool(missing) and all(_within(number, gaps) for number in missing)
        if missing and not recorded:
            yield f"step {previous} is followed by step {step}"
        position += len(missing) * line.count if recorded else 0
        if line.first != position:
            yield f"step {step} begins with sample {line.first} instead of {position}"
        previous, position = step, line.first + line.count


def _within(step: int, gaps: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= step <= last for first, last in gaps)


def _batches(steps: Mapping[int, Line], batches: Mapping[Number, int]) -> Iterator[str]:
    for step, line in steps.items():
        expected = batches.get(line.generation)
        if expected is None:
            yield f"step {step} was made by generation {line.generation}, outside the lineage"
        elif line.count != expected:
            yield f"step {step} has {line.count} samples instead of {expected}"
