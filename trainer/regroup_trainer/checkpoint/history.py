"""The steps that a run committed, one JSON line each, and the audit that replays them. Torch-free.

Rank 0 of each generation appends to a file of its own (`history_writer`). Steps beyond the one that
the next generation resumed from are lost, so the lineage decides which lines count. A generation
that continues a state in memory first repeats the lines that the former rank 0 may not have
written. Repeated lines count where the original is missing. A file beside it names the steps that
had to be left out.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError

from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.layout import DataIdentity, Layout, Record
from regroup_trainer.data.order import SampleOrder, digest
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.rank_messages import HistoryEnd

_TAIL_BYTES = 4096
"""So many bytes at the end of a file contain the last whole line."""


class CommittedStep(Record):
    """One optimizer step of all ranks."""

    generation: GenerationNumber
    """The generation that made it, also where another one repeats the line."""
    step: int
    """Counted from 1."""
    world: int
    """The number of ranks that took part."""
    epoch: int
    """The epoch of the first sample."""
    first: int
    """Position of the first sample in the stream of samples."""
    count: int
    """The number of samples."""
    hash: int
    """`order.digest` of the sample ids."""
    loss: float | None
    """Mean loss per token in nats, in full precision; None when it was not finite and the update
    was skipped.
    """


class Gap(Record):
    """Steps that were committed and are not in the history, since the volume was away for long."""

    first: int
    last: int


def last_step(layout: Layout, links: tuple[lineage.LineageRecord, ...]) -> int:
    """The newest step in the history of these generations, which are given oldest first; 0: none.
    Raises OSError.
    """
    found = history_end(layout, links)
    return found.step if found else 0


def history_end(layout: Layout, links: tuple[lineage.LineageRecord, ...]) -> HistoryEnd | None:
    """Where the history of these generations ends, which are given oldest first; None: no step.
    Raises OSError.
    """
    end = math.inf
    for link in reversed(links):
        path = layout.history_file(link.generation)
        line = last_record(path)
        if line is not None:
            return HistoryEnd(
                step=int(min(line.step, end)),
                written_step=line.step,
                world_size=line.world,
                time=path.stat().st_mtime,
            )
        end = min(end, link.resumed_from_step)
    return None


def known_end(layout: Layout, links: tuple[lineage.LineageRecord, ...]) -> HistoryEnd | None:
    """As `history_end`; where the volume took no line of them, it ends where they began. None:
    there are no generations. Raises OSError.
    """
    if not links:
        return None
    begun = links[0].resumed_from_step
    time = layout.lineage_record(links[-1].generation).stat().st_mtime
    without = HistoryEnd(step=begun, written_step=begun, world_size=0, time=time)
    return history_end(layout, links) or without


def last_record(path: Path) -> CommittedStep | None:
    """The last whole line of a history, which another process may be writing; None without one."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValidationError):  # half written, or its start was not read
            return CommittedStep.model_validate_json(line)
    return None


def committed(directory: Path) -> list[CommittedStep]:
    """The steps that led to the current state of the run, in order. Raises OSError and
    pydantic.ValidationError.
    """
    layout = Layout(directory)
    records = lineage.read(layout)
    return list(_committed(layout, lineage.chain(records, max(records, default=None))))


def audit(directory: Path) -> list[str]:
    """Replay the committed steps; returns a sentence for each gap, repetition, wrong range or wrong
    set of samples. A gap that was recorded has a sentence of its own.
    """
    layout = Layout(directory)
    records = lineage.read(layout)
    links = lineage.chain(records, max(records, default=None))
    identities = {link.generation: link.data for link in links}
    gaps = [gap for link in links for gap in _read_gaps(layout.history_gaps(link.generation))]
    of_samples: list[str] = []

    def checked() -> Iterator[CommittedStep]:
        for step in _committed(layout, links):
            of_samples.extend(_sample_problems(step, identities[step.generation]))
            yield step

    of_order = list(_order_problems(checked(), gaps))
    return [*of_order, *of_samples]


def _committed(layout: Layout, links: tuple[lineage.LineageRecord, ...]) -> Iterator[CommittedStep]:
    """One at a time: the steps of a long run do not fit into memory."""
    last, newest = lineage.last_steps(links), 0
    for link in links:
        known = newest
        for step in _read(layout.history_file(link.generation)):
            counts = step.generation == link.generation or step.step > known
            if counts and step.step <= last[link.generation]:
                newest = step.step
                yield step


def _read(path: Path) -> Iterator[CommittedStep]:
    if not path.exists():  # the generation ended before its first step
        return
    with path.open() as lines:
        for line in lines:
            try:
                step = CommittedStep.model_validate_json(line)
            except ValidationError:
                if next(lines, None) is not None:  # only the last line can be half-written
                    raise
                return
            yield step


def _read_gaps(path: Path) -> Iterator[Gap]:
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        with contextlib.suppress(ValidationError):  # half-written: the writer repeats it
            yield Gap.model_validate_json(line)


def _order_problems(steps: Iterable[CommittedStep], gaps: list[Gap]) -> Iterator[str]:
    step, position = 0, 0
    for found in steps:
        known = _known_missing(step + 1, found.step, gaps)
        if known:
            yield f"steps {step + 1} to {found.step - 1} were left out: the volume was away"
            position += known * found.count
        elif found.step != step + 1:
            yield (
                f"step {step} of the lineage is followed by step {found.step} "
                f"of generation {found.generation}"
            )
        if found.first != position:
            yield f"step {found.step} begins with sample {found.first} instead of {position}"
        step, position = found.step, found.first + found.count


def _known_missing(first: int, end: int, gaps: list[Gap]) -> int:
    """How many steps from `first` to before `end` are missing, if gaps name all of them; else 0."""
    missing = range(first, end)
    named = all(any(gap.first <= step <= gap.last for gap in gaps) for step in missing)
    return len(missing) if named else 0


def _sample_problems(step: CommittedStep, data: DataIdentity) -> Iterator[str]:
    if step.count != data.global_batch_size:
        yield (
            f"step {step.step} trained on {step.count} samples instead of {data.global_batch_size}"
        )
    expected = digest(
        SampleOrder(data.samples, data.seed).ids(range(step.first, step.first + step.count))
    )
    if step.hash != expected:
        yield (
            f"step {step.step} trained on other samples "
            f"than {step.first}..{step.first + step.count - 1}"
        )
