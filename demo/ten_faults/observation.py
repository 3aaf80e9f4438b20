"""What is seen of a fault, what should be seen, and whether the two agree. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Expected:
    """What a user should be shown. In the words, `{node}` and the like stand for names that are
    known once the fault has struck.
    """

    alert: str | None
    """The alert that fires; None where none should."""
    because: str
    """Why this alert, or why none."""
    words: tuple[str, ...]
    """What `why` says while the fault lasts."""
    afterwards: tuple[str, ...]
    """What `why` says when all is over."""
    heals: bool
    """Whether the job trains again without anybody."""
    also: frozenset[str] = frozenset()
    """Alerts that may fire too, depending on how long the fault lasts."""
    ends: bool = False
    """Whether the job fails, and does not train again."""
    patience_seconds: float = 15.0
    """How long after the alert `why` may still say less."""


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
    names: Mapping[str, str] = field(default_factory=dict)
    """What the words of `Expected` name."""


def filled(words: tuple[str, ...], names: Mapping[str, str]) -> tuple[str, ...]:
    """The words with the names put in."""
    return tuple(word.format_map(names) for word in words)


def missing(words: tuple[str, ...], text: str) -> list[str]:
    """The words that a text does not have, however its lines are broken."""
    plain = " ".join(text.split())
    return [word for word in words if word not in plain]


def problems(expected: Expected, observed: Observed) -> list[str]:
    """What was not right, or not enough, of what a user was shown. Empty when all was."""
    return [
        *_alert_problems(expected, observed),
        *_why_problems("while it lasted", expected.words, observed.height, observed.names),
        *_why_problems("afterwards", expected.afterwards, observed.after, observed.names),
        *_course_problems(expected, observed),
    ]


def _alert_problems(expected: Expected, observed: Observed) -> Iterator[str]:
    if expected.alert is not None and expected.alert not in observed.alerts:
        held = " (it was pending)" if expected.alert in observed.pending else ""
        yield f"alert {expected.alert} did not fire{held}"
    for alert in sorted(set(observed.alerts) - expected.also - {expected.alert}):
        yield f"alert {alert} fired and should not"


def _why_problems(
    when: str, words: tuple[str, ...], look: Look, names: Mapping[str, str]
) -> Iterator[str]:
    if look.exit_code:
        yield f"`why` ended with {look.exit_code} {when}"
    for word in missing(filled(words, names), look.why):
        yield f"`why` did not say {word!r} {when}"


def _course_problems(expected: Expected, observed: Observed) -> Iterator[str]:
    if expected.heals != observed.healed:
        yield "the job did not heal by itself" if expected.heals else "the job healed by itself"
    if observed.recovered_after is None:
        yield "the job did not fail" if expected.ends else "the job did not train again"
