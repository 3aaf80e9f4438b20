"""What is seen of a fault, what should be seen, and whether the two agree. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Names = Mapping[str, str]
"""What a fault struck: the name of its `node`, the number of its `rank`."""


@dataclass(frozen=True)
class Words:
    """What `why` should say. `{node}` and the like stand for what the fault struck."""

    sentence: tuple[str, ...]
    """In its first sentence, which has to be enough to know what is wrong."""
    below: tuple[str, ...] = ()
    """In the evidence or the advice below it."""

    def filled(self, names: Names) -> Words:
        """With the names put in."""
        filled = (tuple(w.format_map(names) for w in part) for part in (self.sentence, self.below))
        return Words(*filled)


@dataclass(frozen=True)
class Expected:
    """What a user should be shown."""

    alert: str | None
    """The alert that fires; None where none should."""
    because: str
    """Why this alert, or why none."""
    words: Words
    """What `why` says while the fault lasts."""
    afterwards: Words
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
    names: Names = field(default_factory=dict)
    run: str = ""
    """The run in which it was seen, by the time of its begin."""


def unsaid(words: Words, names: Names, why: str) -> list[str]:
    """What `why` does not say where it should, however its lines are broken."""
    wanted = words.filled(names)
    sentence, _, below = why.partition("\n\n")
    return [
        *(f"{word!r} in its first sentence" for word in missing(wanted.sentence, sentence)),
        *(f"{word!r} below it" for word in missing(wanted.below, below)),
    ]


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


def _why_problems(when: str, words: Words, look: Look, names: Names) -> Iterator[str]:
    if look.exit_code:
        yield f"`why` ended with {look.exit_code} {when}"
    for part in unsaid(words, names, look.why):
        yield f"`why` did not say {part} {when}"


def _course_problems(expected: Expected, observed: Observed) -> Iterator[str]:
    if expected.heals != observed.healed:
        yield "the job did not heal by itself" if expected.heals else "the job healed by itself"
    if observed.recovered_after is None:
        yield "the job did not fail" if expected.ends else "the job did not train again"
