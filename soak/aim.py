"""What a fault is meant for, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from soak.site import Job, Site

Json = dict[str, Any]
T = TypeVar("T")


class Missed(Exception):
    """The fault did not strike. `pods` and `nodes` may have lost their state all the same."""

    def __init__(
        self, reason: str, pods: tuple[str, ...] = (), nodes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(reason)
        self.pods, self.nodes = pods, nodes


def nothing() -> None:
    """How a fault that is over at once is undone."""


@dataclass(frozen=True)
class Struck:
    """A fault that struck."""

    proof: str
    """What was seen, as a sentence."""
    undo: Callable[[], object] = nothing
    pods: tuple[str, ...] = ()
    """Those whose ranks lost their state at once."""
    nodes: tuple[str, ...] = ()
    """All ranks on them lost theirs, or cannot be reached."""


@dataclass(frozen=True)
class Aim:
    """What a fault is meant for."""

    site: Site
    job: Job
    choice: float
    """In [0, 1)."""

    def worker(self) -> tuple[int, Json]:
        """Rank and pod of the worker that is hit."""
        return pick(self.job.workers(), self.choice, "worker that trains")

    def coordinator(self) -> Json:
        """The pod of the coordinator, or of torchrun's store."""
        role = self.job.meeting_role
        return pick(self.job.pods(role), 0, role)

    def node(self) -> str:
        """The name of the node of the worker that is hit."""
        return str(self.worker()[1]["spec"]["nodeName"])


def pick(found: Sequence[T], choice: float, what: str) -> T:
    """One of those found. Raises Missed when there is none."""
    if not found:
        raise Missed(f"there is no {what}")
    return found[int(choice * len(found))]


def require(holds: bool, otherwise: str, pods: tuple[str, ...] = ()) -> None:
    """Raises Missed unless it holds; `pods` may have lost their state."""
    if not holds:
        raise Missed(otherwise, pods)
