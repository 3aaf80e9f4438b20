"""What is seen of an alert whose cause was made, what should be, and whether they agree. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from demo.ten_faults.answer import Answer, unsaid
from demo.ten_faults.observation import Look

Json = dict[str, Any]


@dataclass(frozen=True)
class Awaited:
    """How an alert should arrive in Alertmanager."""

    labels: Mapping[str, str]
    """All of them: what it is about, its name and its severity."""
    runbook_url: str
    answer: Answer
    """What `why` says of the job meanwhile."""
    passes: bool = False
    """Whether it may end while its cause lasts."""


@dataclass(frozen=True)
class Sighting:
    """What was seen of one alert. Times are in seconds; None: it did not come to that."""

    quiet_before: bool
    """Whether the alert was neither pending nor firing before the cause."""
    look: Look
    """What a user sees whom the alert has woken."""
    fired_after: float | None = None
    """Since the cause."""
    lasted: bool = False
    """Whether it still fired when somebody acted."""
    ended_after: float | None = None
    """Since somebody acted."""
    labels: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""
    runbook_url: str = ""


def read_sighting(plain: Json) -> Sighting:
    """A sighting from a file of the record."""
    return Sighting(**{**plain, "look": Look(**plain["look"])})


def problems(awaited: Awaited, seen: Sighting) -> list[str]:
    """What was not as it should be. Empty when all was."""
    if seen.fired_after is None:
        return ["the alert did not fire"]
    return [*_alert_problems(awaited, seen), *_why_problems(awaited, seen)]


def _alert_problems(awaited: Awaited, seen: Sighting) -> Iterator[str]:
    if not seen.quiet_before:
        yield "it fired, or was about to, before its cause"
    if dict(seen.labels) != dict(awaited.labels):
        yield f"its labels are {dict(seen.labels)} and should be {dict(awaited.labels)}"
    if seen.runbook_url != awaited.runbook_url:
        yield f"its runbook_url is {seen.runbook_url!r} and should be {awaited.runbook_url!r}"
    if not (seen.lasted or awaited.passes):
        yield "it ended while its cause lasted"
    if seen.ended_after is None:
        yield "it did not end after its cause was gone"


def _why_problems(awaited: Awaited, seen: Sighting) -> Iterator[str]:
    if seen.look.exit_code:
        yield f"`why` ended with {seen.look.exit_code}"
    for part in unsaid(awaited.answer, {}, seen.look.why):
        yield f"`why` should have said {part}"
