"""Faults for a local run, as `--kill` spells them: `worker=1@step=50`, `rank=0@step=50`, `coordinator@step=50`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["worker", "rank", "coordinator"]
_SYNTAX = re.compile(r"(?:(worker|rank)=(\d+)|(coordinator))@step=(\d+)")
EXAMPLES = "worker=1@step=50, rank=0@step=50 or coordinator@step=50"


@dataclass(frozen=True)
class Fault:
    """A process is killed as soon as `step` has been committed."""

    kind: FaultKind
    number: int
    """Index of the worker, or rank; 0 for the coordinator."""
    step: int

    def __str__(self) -> str:
        target = self.kind if self.kind == "coordinator" else f"{self.kind} {self.number}"
        return f"{target} at step {self.step}"


def parse_fault(text: str) -> Fault:
    """Read one `--kill`. Raises ValueError, which shows how it is spelt."""
    match = _SYNTAX.fullmatch(text.replace(" ", ""))
    if match is None:
        raise ValueError(f"{text!r} is not a fault: write {EXAMPLES}")
    kind, number, _, step = match.groups()
    if kind == "worker":
        return Fault("worker", int(number), int(step))
    if kind == "rank":
        return Fault("rank", int(number), int(step))
    return Fault("coordinator", 0, int(step))
