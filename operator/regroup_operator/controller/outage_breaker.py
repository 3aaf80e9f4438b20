"""Notices that many coordinators stop answering at once. Then the fault is likely the operator's or
the network's, and agents reached over that network are no witnesses. The caller gives the time.

Coordinators run what tenants want, so one namespace must not switch off the evidence of another by
coordinators that fail on purpose. An outage of the operator's own hits more than one namespace. So
whichever namespace is left out, the others must show half of what is too many. Where no namespace
has more than a tenth of the coordinators, they do whenever too many fail. Else nothing can be
concluded from few others, unless most of them fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from regroup_operator.api.resource import Key

FEWEST_COORDINATORS = 10
"""Below so many, nothing can be concluded from how many fail."""
FEWEST_FAILURES = 2
"""One failure beside those of another namespace may be a coincidence."""
TOO_MANY = 0.2
"""More than this part of the coordinators is no coincidence."""
TOGETHER_SECONDS = 10.0
"""Failures within so long count as simultaneous."""
OPEN_SECONDS = 60.0
"""How long only the evidence of pods and nodes counts afterwards."""


class OutageBreaker:
    """Open while too many coordinators fail together, and for a minute after that: for all
    namespaces where those beside any one of them show it; else for those alone in which too many
    fail.
    """

    def __init__(self) -> None:
        self._failed: dict[Key, float] = {}
        """Job -> when its coordinator last failed to answer; the oldest first."""
        self._counts: Counter[str] = Counter()
        """Namespace -> how many of them are its."""
        self._open_until: dict[str, float] = {}
        """Of namespaces."""

    def note_failure(self, key: Key, followed: Mapping[str, int], now: float) -> None:
        """The coordinator of this job did not answer. `followed`: how many coordinators of each
        namespace are followed.
        """
        self._forget(key)
        self._failed[key] = now
        self._counts[key[0]] += 1
        since = now - TOGETHER_SECONDS
        while self._failed[oldest := next(iter(self._failed))] < since:  # never the newest
            self._forget(oldest)
        everywhere = sum(followed.values())
        if everywhere >= FEWEST_COORDINATORS and len(self._failed) > TOO_MANY * everywhere:
            self._open(followed, everywhere, now)

    def _forget(self, key: Key) -> None:
        if self._failed.pop(key, None) is not None:
            self._counts -= Counter([key[0]])  # without namespaces that have none left

    def _open(self, followed: Mapping[str, int], everywhere: int, now: float) -> None:
        rests = {name: everywhere - followed.get(name, 0) for name in self._counts}
        decisive = {name for name, rest in rests.items() if not self._suffice(name, rest)}
        is_general = all(
            _are_too_many(len(self._failed) - self._counts[name], min(rest, everywhere / 2))
            and (name not in decisive or rest >= (1 - TOO_MANY / 2) * everywhere)
            for name, rest in rests.items()
        )
        until = now + OPEN_SECONDS
        self._open_until = {name: at for name, at in self._open_until.items() if at > now} | {
            name: until
            for name, count in followed.items()
            if is_general or (decisive <= {name} and _are_too_many(self._counts[name], count))
        }

    def _suffice(self, left_out: str, rest: int) -> bool:
        """Whether something can be concluded from the `rest` beside this namespace: else its
        failures alone may have made them enough.
        """
        failed = len(self._failed) - self._counts[left_out]
        return rest >= FEWEST_COORDINATORS or failed > rest / 2

    def is_open(self, namespace: str, now: float) -> bool:
        """Whether only the evidence of pods and nodes counts for the coordinators there."""
        return now < self._open_until.get(namespace, now)


def _are_too_many(failed: int, followed: float) -> bool:
    return failed >= FEWEST_FAILURES and failed > TOO_MANY * followed
