"""Which actions of a job were refused, and how long their kind waits. The caller gives the time.

A refusal holds back its own kind of action alone. So a full quota keeps no coordinator from being
followed, no lost pod from being deleted, and no event from being made.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from regroup_operator.controller.work_queue import retry_pause
from regroup_operator.decide.plan import (
    Action,
    CreateClaim,
    CreateCoordinator,
    CreateStore,
    CreateWorker,
    EnsureAccess,
    EnsureService,
    EnsureToken,
)
from regroup_operator.errors import ClusterError, ConflictError, ObjectConflictError
from regroup_trainer.protocol.waiting_reasons import WaitingReason

Kind = type[Action]
PODS: frozenset[Kind] = frozenset({CreateCoordinator, CreateStore, CreateWorker})
LEADERS = CreateCoordinator | CreateStore
NEEDED_BY_PODS: frozenset[Kind] = frozenset({EnsureAccess, EnsureToken, EnsureService, CreateClaim})
"""Without these no pod is made: it would not start, or nothing would isolate it."""
QUIET_CONFLICTS = 3
"""In a row, of an object that has changed since it was read. The next round reads it anew."""


def made_nothing(creation: Action, refused: Mapping[Kind, Exception]) -> bool:
    """Whether a creation that did not succeed has made nothing for sure, and may be tried again
    under the same name. That does not help where the name is taken.
    """
    error = refused.get(type(creation))
    if error is None:
        return True  # it was not tried
    is_answer = isinstance(error, ClusterError) and not error.may_pass
    return is_answer and not isinstance(error, ConflictError)


def stopped_by(kind: Kind) -> frozenset[Kind]:
    """The kinds that are not tried any more in a round in which one of `kind` was refused."""
    return frozenset({kind, *PODS}) if kind in NEEDED_BY_PODS else frozenset({kind})


@dataclass(frozen=True)
class _Refusal:
    """The last refusal of one kind."""

    error: Exception
    count: int
    """In a row."""
    scene: Hashable
    """What the job was like: another spec, or other pods, are worth a try at once."""
    until: float


class Refusals:
    """Which requests for a job the API server refused, and until when each is held back."""

    def __init__(self) -> None:
        self._by_kind: dict[Kind, _Refusal] = {}

    def note_round(
        self,
        planned: Collection[Kind],
        refused: dict[Kind, Exception],
        held_back: Collection[str],
        scene: Hashable,
        now: float,
    ) -> None:
        """A round is over. Of the kinds `planned`, these were refused, and others stopped.
        `held_back` are the names of those that waited when it began: they have not been tried, also
        where their pause has ended meanwhile.
        """
        kept = {kind: at for kind, at in self._by_kind.items() if kind.__name__ in held_back}
        for kind, error in refused.items():
            former = self._by_kind.get(kind)
            count = former.count + 1 if former else 1
            until = now + retry_pause(count)
            for stopped in (kind, *(stopped_by(kind) & frozenset(planned))):
                kept[stopped] = _Refusal(error, count, scene, until)
        self._by_kind = kept

    def held(self, scene: Hashable, now: float) -> frozenset[Kind]:
        """The kinds that wait."""
        return frozenset(
            kind
            for kind, refusal in self._by_kind.items()
            if refusal.scene == scene and now < refusal.until
        )

    def due(self, now: float) -> float | None:
        """Seconds until the first kind may be tried again; None when none was refused."""
        return min((max(0.0, r.until - now) for r in self._by_kind.values()), default=None)

    def explain(self) -> tuple[WaitingReason, str]:
        """Reason and message of the oldest refusal that is no passing conflict; else no message."""
        refusal = next((r for kind, r in self._by_kind.items() if not _is_quiet(kind, r)), None)
        if refusal is None:
            return WaitingReason.ApiError, ""
        if isinstance(refusal.error, ObjectConflictError):
            return WaitingReason.ObjectConflict, str(refusal.error)
        if full := _explain_quota(refusal.error):
            return WaitingReason.QuotaExceeded, full
        return WaitingReason.ApiError, str(refusal.error)


def _is_quiet(kind: Kind, refusal: _Refusal) -> bool:
    """Whether it is the usual end of a race, and nothing waits for it."""
    is_race = isinstance(refusal.error, ConflictError) and refusal.count <= QUIET_CONFLICTS
    return is_race and kind not in PODS | NEEDED_BY_PODS


_QUOTA_ADVICE = {
    "exceeded quota: ": "raise the quota, free what uses it, or ask for less",
    "failed quota: ": "set what it asks for in spec.template",
}
"""Words of the API server's ResourceQuota admission -> what to do."""


def _explain_quota(error: Exception) -> str:
    """What a quota refused, and what to do; empty when none did."""
    if not isinstance(error, ClusterError) or error.status != HTTPStatus.FORBIDDEN:
        return ""
    advice = (advice for words, advice in _QUOTA_ADVICE.items() if words in error.message)
    what = f"a quota of the namespace refuses an object: {error.message}"
    return next((f"{what} ({text})" for text in advice), "")
