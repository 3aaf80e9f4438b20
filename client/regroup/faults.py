"""Faults for a local run, as `--kill` spells them: `worker=1@step=50`, `rank=0@seconds=20`, `coordinator@step=50`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["worker", "rank", "coordinator"]
FaultUnit = Literal["step", "seconds"]
_SYNTAX = re.compile(r"(?:(worker|rank)=(\d+)|(coordinator))@(step|seconds)=(\d+)")
_KINDS: dict[str | None, FaultKind] = {"worker": "worker", "rank": "rank", None: "coordinator"}
EXAMPLES = "worker=1@step=50, rank=0@step=50 or coordinator@step=50"
"""The time may be given as `@seconds=20` too."""


@dataclass(frozen=True)
class Fault:
    """A process is killed as soon as a step has been committed, or so many seconds after the start."""

    kind: FaultKind
    number: int
    """Index of the worker, or rank; 0 for the coordinator."""
    at: int
    unit: FaultUnit = "step"

    def is_due(self, step: int, seconds: float) -> bool:
        """Whether its time has come."""
        return (step if self.unit == "step" else seconds) >= self.at

    def __str__(self) -> str:
        target = self.kind if self.kind == "coordinator" else f"{self.kind} {self.number}"
        return f"{target} at step {self.at}" if self.unit == "step" else f"{target} after {self.at} s"


def parse_fault(text: str) -> Fault:
    """Read one `--kill`. Raises ValueError, which shows how it is spelt."""
    match = _SYNTAX.fullmatch(text.replace(" ", ""))
    if match is None:
        raise ValueError(f"{text!r} is not a fault: write {EXAMPLES}")
    kind, number, _, unit, at = match.groups()
    return Fault(_KINDS[kind], int(number or 0), int(at), "step" if unit == "step" else "seconds")
