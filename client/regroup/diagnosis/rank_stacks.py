"""The stacks of many ranks, equal ones folded: where a job hangs is where few ranks are. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from regroup.kubernetes.text_tables import paragraph
from regroup_trainer.protocol.agent_messages import RankStack
from regroup_trainer.protocol.message import printable

_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+")
_FRAME = re.compile(r'\s*File "(.*)", line (\d+) in (.*)')
_LEAST_PATH = 20


@dataclass(frozen=True)
class WorkerAnswer:
    """What one worker showed."""

    pod: str
    ranks: tuple[RankStack, ...] = ()
    missing: str = ""
    """Why it showed nothing; empty: it did."""


@dataclass(frozen=True)
class StackGroup:
    """Ranks that do the same."""

    ranks: tuple[int, ...]
    threads: tuple[tuple[str, ...], ...]
    """The frames of each thread, as `function (file:line)`, the innermost first. The main thread is
    the first one.
    """


@dataclass(frozen=True)
class MissingStacks:
    """Ranks, or a pod, that showed no stack."""

    who: str
    why: str
    """To be read after it."""


@dataclass(frozen=True)
class StackReport:
    """What the ranks of a job do."""

    job: str
    groups: tuple[StackGroup, ...]
    """The smallest one first: most ranks wait for those that are elsewhere."""
    missing: tuple[MissingStacks, ...]


def fold(job: str, answers: Sequence[WorkerAnswer], *, all_threads: bool) -> StackReport:
    """Put ranks with equal stacks together: of the main thread, or of all."""
    stacks: dict[tuple[tuple[str, ...], ...], list[int]] = defaultdict(list)
    missing: dict[str, list[int]] = defaultdict(list)
    for rank in (rank for answer in answers for rank in answer.ranks):
        threads = _threads(rank.text)
        if threads:
            stacks[threads if all_threads else threads[:1]].append(rank.rank)
        else:
            missing[rank.missing or "shows no stack"].append(rank.rank)
    groups = [StackGroup(tuple(sorted(ranks)), threads) for threads, ranks in stacks.items()]
    return StackReport(
        job,
        tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks))),
        (
            *(MissingStacks(f"pod {a.pod}", _without_ranks(a)) for a in answers if not a.ranks),
            *(MissingStacks(name_ranks(ranks), why) for why, ranks in missing.items()),
        ),
    )


def _without_ranks(answer: WorkerAnswer) -> str:
    return answer.missing or "has no running rank: it starts, has ended, or is a spare"


def _threads(text: str) -> tuple[tuple[str, ...], ...]:
    """The frames of each thread, that of the signal, which is the main one, first.

    Faulthandler marks it as the current one, or writes it last.
    """
    found = [block.splitlines() for block in re.split(r"\n\s*\n", text.strip()) if block.strip()]
    named = [lines for lines in found if _THREAD.match(lines[0]) or "most recent" in lines[0]]
    if not named:
        return ()
    main = next((lines for lines in named if lines[0].startswith("Current")), named[-1])
    ordered = [main, *(lines for lines in named if lines is not main)]
    return tuple(tuple(_frame(line) for line in lines[1:]) for lines in ordered)


def _frame(line: str) -> str:
    match = _FRAME.match(line)
    return printable(f"{match[3]} ({match[1]}:{match[2]})" if match else line.strip())


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`."""
    ordered = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
    return f"rank{'s' if len(ordered) > 1 else ''} {shown}"


def stack_lines(report: StackReport, width: int) -> list[str]:
    """The report as text."""
    answered = sum(len(group.ranks) for group in report.groups)
    ranks = "1 rank" if answered == 1 else f"{answered} ranks"
    lines = [f"{report.job}: {ranks} answered, {_different(len(report.groups))}"]
    for missing in report.missing:
        lines += ["", *paragraph(f"{missing.who} {missing.why}", width, "  ", "")]
    for group in report.groups:
        lines += ["", *paragraph(f"{name_ranks(group.ranks)}:", width, "  ", "")]
        for number, frames in enumerate(group.threads):
            lines += [f"  thread {number + 1}:"] if number else []
            lines += [_fit(frame, width) for frame in frames]
    return lines


def _different(count: int) -> str:
    return {0: "no stack", 1: "all with the same stack"}.get(count, f"{count} different stacks")


def _fit(frame: str, width: int) -> str:
    """A frame on one line: the end of a path says most."""
    function, _, place = frame.partition(" (")
    room = max(_LEAST_PATH, width - len(function) - 4)
    if not place or len(place) <= room:
        return f"  {frame}"
    return f"  {function} (...{place[3 - room :]}"
