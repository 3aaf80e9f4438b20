"""Faults for a local run, as `--kill` spells them: `worker=1@step=50`, `rank=0@seconds=20`, `coordinator@step=50`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["worker", "rank", "coordinator"]
FaultUnit = Literal["step", "seconds", "line"]
_SYNTAX = re.compile(r"(?:(worker|rank)=(\d+)|(coordinator))@(?:(step|seconds)=(\d+)|line=(.+))")
_KINDS: dict[str | None, FaultKind] = {"worker": "worker", "rank": "rank", None: "coordinator"}
EXAMPLES = "worker=1@step=50, rank=0@step=50 or coordinator@step=50"
"""The time may be given as `@seconds=20` too and, of a job that torchrun runs, as `@line=words that a rank prints`."""


@dataclass(frozen=True)
class Fault:
    """A process is killed when a step is committed, so many seconds after the start, or when a line is printed."""

    kind: FaultKind
    number: int
    """Index of the worker, or rank; 0 for the coordinator."""
    at: int
    unit: FaultUnit = "step"
    words: str = ""
    """That the line contains."""

    def is_due(self, step: int, seconds: float, lines: Sequence[str] = ()) -> bool:
        """Whether its time has come; `lines` are those that were printed."""
        if self.unit == "line":
            return any(self.words in line for line in lines)
        return (step if self.unit == "step" else seconds) >= self.at

    def __str__(self) -> str:
        target = self.kind if self.kind == "coordinator" else f"{self.kind} {self.number}"
        when = {"step": f"at step {self.at}", "seconds": f"after {self.at} s", "line": f"at {self.words!r}"}
        return f"{target} {when[self.unit]}"


def parse_fault(text: str) -> Fault:
    """Read one `--kill`. Raises ValueError, which shows how it is spelt."""
    match = _SYNTAX.fullmatch(re.sub(r" *([=@]) *", r"\1", text))
    if match is None:
        raise ValueError(f"{text!r} is not a fault: write {EXAMPLES}")
    kind, number, _, unit, at, words = match.groups()
    units: dict[str | None, FaultUnit] = {"step": "step", "seconds": "seconds", None: "line"}
    return Fault(_KINDS[kind], int(number or 0), int(at or 0), units[unit], words or "")
