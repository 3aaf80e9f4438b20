"""Faults of a local run in the syntax of `--kill`: `worker=1@step=50`, `rank=0@seconds=20`,
`coordinator@step=50`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["worker", "rank", "coordinator"]
FaultUnit = Literal["step", "seconds", "line"]
_SYNTAX = re.compile(
    r"(?:(worker|rank)=(\d+)|(coordinator))@(?:(step|seconds)=(\d+)|line=(.+))", re.ASCII
)
_KINDS: dict[str | None, FaultKind] = {"worker": "worker", "rank": "rank", None: "coordinator"}
EXAMPLES = "worker=1@step=50, rank=0@step=50 or coordinator@step=50"
"""`@seconds=20` is also possible; so is `@line=text that a rank prints` for launcher torchrun."""


@dataclass(frozen=True)
class Fault:
    """A process is killed at a step, some seconds after the start, or when a rank prints a line."""

    kind: FaultKind
    number: int
    """Index of the worker, or rank; 0 for the coordinator."""
    at: int
    unit: FaultUnit = "step"
    text: str = ""
    """Text that the line contains."""

    def is_due(self, step: int, seconds: float, lines: Sequence[str] = ()) -> bool:
        """Whether the fault is due now. `lines` are those that the ranks have printed."""
        if self.unit == "line":
            return any(self.text in line for line in lines)
        return (step if self.unit == "step" else seconds) >= self.at

    def __str__(self) -> str:
        target = self.kind if self.kind == "coordinator" else f"{self.kind} {self.number}"
        when = {
            "step": f"at step {self.at}",
            "seconds": f"after {self.at} s",
            "line": f"at {self.text!r}",
        }
        return f"{target} {when[self.unit]}"


def never_injected(faults: Sequence[Fault]) -> str:
    """What to report of faults that did not come before the end of a run; empty without any."""
    named = ", ".join(f"--kill {fault}" for fault in faults)
    return named and (
        f"{named}: the run ended first, and nothing was killed: give an earlier moment, and a "
        "worker or rank that exists; @step= needs a program whose steps are seen"
    )


def parse_fault(argument: str) -> Fault:
    """Read one `--kill`. Raises ValueError, which shows the syntax."""
    match = _SYNTAX.fullmatch(re.sub(r" *([=@]) *", r"\1", argument))
    if match is None:
        raise ValueError(f"{argument!r} is not a fault: write {EXAMPLES}")
    kind, number, _, unit, at, text = match.groups()
    units: dict[str | None, FaultUnit] = {"step": "step", "seconds": "seconds", None: "line"}
    return Fault(_KINDS[kind], int(number or 0), int(at or 0), units[unit], text or "")
