"""What is seen of a fault, what should be seen, and whether the two agree. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from demo.ten_faults.answer import Answer, Names, unsaid


@dataclass(frozen=True)
class Expected:
    """What a user should be shown."""

    alert: str | None
    """The alert that wakes somebody; None where none should."""
    because: str
    """Why this alert, or why none."""
    answer: Answer
    """What `why` says while the fault lasts."""
    afterwards: Answer
    """What `why` says when all is over."""
    heals: bool
    """Whether the job trains again without anybody."""
    follow: Mapping[str, str] = field(default_factory=dict)
    """Alerts that have to fire too -> why, as a part of a sentence: what the fault does lasts for
    longer than the alert waits.
    """
    also: frozenset[str] = frozenset()
    """Alerts that may fire too, depending on how long the fault lasts."""
    ends: bool = False
    """Whether the job fails, and does not train again."""
    patience_seconds: float = 15.0
    """How long after the alerts `why` may still say less."""

    @property
    def alerts(self) -> tuple[str, ...]:
        """All that have to fire, the one that wakes somebody first."""
        return (self.alert, *self.follow) if self.alert is not None else ()


@dataclass(frozen=True)
class Look:
    """What a user sees at one moment."""

    seconds: float
    """Since the fault."""
    why: str
    exit_code: int
    line: str
    """What `kubectl get trainingjob` shows."""


@dataclass(frozen=True)
class Observed:
    """What was seen of one fault."""

    height: Look
    """While it lasted."""
    after: Look
    """When it was over."""
    shown_after: float | None
    """Seconds until `why` said it; None: it never did."""
    alerts: Mapping[str, float] = field(default_factory=dict)
    """Alerts that fired -> seconds since the fault."""
    pending: frozenset[str] = frozenset()
    """Alerts that held, for a shorter time than they need to fire."""
    healed: bool = False
    """Whether the job trained again without anybody."""
    recovered_after: float | None = None
    """Seconds until the job trained with all its workers again, since the fault where it heals by
    itself, else since somebody acted; None: it did not.
    """
    names: Names = field(default_factory=dict)
    run: str = ""
    """The run in which it was seen, by the time of its begin."""


def problems(expected: Expected, observed: Observed) -> list[str]:
    """What was not right, or not enough, of what a user was shown. Empty when all was."""
    return [
        *_alert_problems(expected, observed),
        *_why_problems("while it lasted", expected.answer, observed.height, observed.names),
        *_why_problems("afterwards", expected.afterwards, observed.after, observed.names),
        *_course_problems(expected, observed),
    ]


def _alert_problems(expected: Expected, observed: Observed) -> Iterator[str]:
    for alert in expected.alerts:
        if alert not in observed.alerts:
            held = " (it was pending)" if alert in observed.pending else ""
            yield f"alert {alert} did not fire{held}"
    for alert in sorted(set(observed.alerts) - expected.also - set(expected.alerts)):
        yield f"alert {alert} fired and should not"


def _why_problems(when: str, answer: Answer, look: Look, names: Names) -> Iterator[str]:
    if look.exit_code:
        yield f"`why` ended with {look.exit_code} {when}"
    for part in unsaid(answer, names, look.why):
        yield f"`why` should have said {part} {when}"


def _course_problems(expected: Expected, observed: Observed) -> Iterator[str]:
    if expected.heals != observed.healed:
        yield "the job did not heal by itself" if expected.heals else "the job healed by itself"
    if observed.recovered_after is None:
        yield "the job did not fail" if expected.ends else "the job did not train again"
