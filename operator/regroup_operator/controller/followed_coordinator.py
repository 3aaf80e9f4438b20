"""One coordinator that is followed: what its last answers, or their absence, amount to. The caller
gives the time, of a ContactClock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from regroup_operator.api.resource import Key
from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS
from regroup_operator.controller.agent_survey import AgentSurvey
from regroup_operator.controller.metered_answers import Meter
from regroup_operator.decide.coordinator_evidence import UNREADABLE_ANSWERS
from regroup_operator.errors import CoordinatorError, NoAnswerError
from regroup_operator.informer.object_cache import HeldBytes
from regroup_operator.observe.observed import CoordinatorView
from regroup_trainer.protocol.environment import COORDINATOR_PORT
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.protocol.message import PROTOCOL_VERSION

ANSWER_BYTES = 96 * 1024 * 1024
"""Of the answers that are kept of all coordinators, about. One of a job with 4,096 workers takes 3
MiB: a namespace alone has room for fifteen.
"""
_ROUNDED_BYTES = 16 * 1024
"""To a multiple of so many each counts: where nothing is free, it may grow a little."""


@dataclass(frozen=True)
class Target:
    """How one coordinator is reached. A new pod, term or address makes another target."""

    uid: str
    """UID of its pod."""
    address: str
    term: int
    token: str
    protocol: int = PROTOCOL_VERSION
    """The version that it speaks: of the release that its job was started with."""

    @property
    def url(self) -> str:
        """http://address:port"""
        return f"http://{host_of(self.address)}:{COORDINATOR_PORT}"


class AnswerRoom:
    """How much the answers take that are kept of all jobs. Those of a namespace take no more than
    they leave free, so that there is room for those of another.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held = HeldBytes()
        self._sizes: dict[Key, int] = {}

    def take(self, key: Key, size: int) -> bool:
        """Let an answer of so many bytes take the place of a job's last one. Returns whether there
        is room: always where it takes no more than that one.
        """
        size, before = -(-size // _ROUNDED_BYTES) * _ROUNDED_BYTES, self._sizes.get(key, 0)
        others = self._held.total - before
        of_namespace = self._held.by_namespace[key[0]] - before
        if size > max(before, (self._most_bytes - others - of_namespace) / 2):
            return False
        self._sizes[key] = size
        self._held.add(key[0], size - before)
        return True

    def release(self, key: Key) -> None:
        """No answer of this job is kept any more."""
        if size := self._sizes.pop(key, 0):
            self._held.add(key[0], -size)


def host_of(address: str) -> str:
    """An IP as a URL has it."""
    return f"[{address}]" if ":" in address else address


def without_emitted(status: CoordinatorStatus, sequence: int) -> CoordinatorStatus:
    """The status without events up to this one, which take five times as much memory as the rest.
    That the newest save has failed is needed still.
    """
    failures = [event for event in status.events if event.reason == "CheckpointFailed"]
    kept = tuple(
        event for event in status.events if event.sequence > sequence or event in failures[-1:]
    )
    if len(kept) == len(status.events):
        return status
    return status.model_copy(update={"events": kept})


@dataclass
class RoundCosts:
    """What rounds that the news of one coordinator have begun took of the operator's one thread."""

    owed: float = 0.0
    """Seconds. It falls by `share` of the time."""
    at: float = 0.0
    """When that was so."""

    def charge(self, seconds: float, share: float, now: float) -> None:
        """A round took so many seconds."""
        self.owed, self.at = self._left(share, now) + seconds, now

    def pause(self, free: float, share: float, now: float) -> float:
        """Seconds until no more than `free` is owed."""
        return max(0.0, self._left(share, now) - free) / share

    def _left(self, share: float, now: float) -> float:
        return max(0.0, self.owed - share * (now - self.at))


@dataclass
class FollowedCoordinator:
    """What is known of one job's coordinator."""

    target: Target
    has_watch: bool = True
    """Whether it serves a watch, as far as is known. Releases before this one do not."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    survey: AgentSurvey = field(default_factory=AgentSurvey)
    workers: int = DEFAULT_MAX_WORKERS
    """How many its job may have: its answers may be as large and as costly as that takes."""
    meter: Meter = field(default_factory=Meter)
    """Of the operator's one thread: what was read and decoded since the last pause."""
    asked: bool = False
    """Whether there was a first answer, or a first request had none."""
    status: CoordinatorStatus | None = None
    failures: int = 0
    error: str = ""
    answering_since: float | None = None
    unanswered: bool = False
    """Whether the last request had no answer at all."""
    last_contact: float = 0.0
    """When the coordinator last answered, or sent a line; at first when it was to be followed."""
    stopped_answering: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it does not answer: then agents are asked."""
    lost_since: dict[str, float] = field(default_factory=dict)
    worker_contacts: dict[str, float] = field(default_factory=dict)
    """UID of a running worker -> when the coordinator last had contact with it, or it was first
    seen: of those that are not in `in_contact`.
    """
    in_contact: frozenset[str] = frozenset()
    """UIDs of those it had contact with when it last answered."""
    emitted: int = 0
    """Sequence of the newest of its events that has been emitted."""
    pods: int = 0
    """Of its job, in its last round."""
    rounds: RoundCosts = field(default_factory=RoundCosts)
    news: asyncio.TimerHandle | None = None
    """News that wait, since its rounds have taken too much."""
    has_round: bool = False
    """Whether the next round of its job is one that its news have begun."""

    def answered(self, status: CoordinatorStatus, now: float) -> bool:
        """Take over an answer. Returns whether it is news."""
        status = without_emitted(status, self.emitted)
        # A coordinator that did not answer could not report with whom it had contact.
        again = self.failures > 0
        news = again or self.status is None or self.status.essence() != status.essence()
        lost = {member.member for member in status.members if member.lost}
        self.lost_since = {uid: self.lost_since.get(uid, now) for uid in lost}
        self.worker_contacts = {
            uid: now if again else self._worker_contact(uid, now) for uid in self.worker_contacts
        }
        self.in_contact = frozenset(m.member for m in status.members if not m.lost)
        self.in_contact |= frozenset(status.agents_in_contact or ())
        self.status, self.failures, self.error = status, 0, ""
        self.note_contact(now)
        self.answering_since = self.answering_since or now
        return news

    def note_emitted(self, sequence: int) -> None:
        """Its events up to this one have been emitted."""
        self.emitted = max(self.emitted, sequence)
        if self.status is not None:
            self.status = without_emitted(self.status, self.emitted)

    def drop_news(self) -> None:
        """A round has begun, or none is to begin any more."""
        if self.news is not None:
            self.news.cancel()
            self.news = None

    def note_contact(self, now: float) -> None:
        """It has answered, whatever the answer is: of a watch, that nothing has changed."""
        self.asked, self.unanswered, self.last_contact = True, False, now
        self.stopped_answering.clear()
        self.survey.forget()

    def failed(self, error: CoordinatorError, now: float) -> bool:
        """Take over that a request brought no status. Returns whether it is news."""
        self.failures += 1
        changed, self.error = self.error != str(error), str(error)
        if isinstance(error, NoAnswerError):
            news = not self.unanswered
            self.asked = self.unanswered = True
            self.stopped_answering.set()
            return news
        self.note_contact(now)
        return changed or self.failures == UNREADABLE_ANSWERS

    def view(self, running: Iterable[str], now: float, *, outage: bool) -> CoordinatorView:
        """For the planner. `running`: the UIDs of the workers that run. `outage`: whether many
        coordinators stopped answering at once.
        """
        self.worker_contacts = {uid: self._worker_contact(uid, now) for uid in running}
        reports = self.status is not None and self.status.agents_in_contact is not None
        return CoordinatorView(
            status=self.status,
            failures=self.failures,
            unanswered_seconds=now - self.last_contact if self.unanswered else 0.0,
            contacts=self.survey.contacts(),
            trusts_agents=not outage,
            answering_seconds=now - self.answering_since
            if self.answering_since is not None
            else 0.0,
            lost_seconds={uid: now - since for uid, since in self.lost_since.items()},
            no_contact_seconds={
                uid: now - at for uid, at in self.worker_contacts.items() if reports
            },
            error=self.error,
            emitted=self.emitted,
        )

    def _worker_contact(self, uid: str, now: float) -> float:
        return self.last_contact if uid in self.in_contact else self.worker_contacts.get(uid, now)
