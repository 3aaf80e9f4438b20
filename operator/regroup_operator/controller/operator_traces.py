"""What the operator does for a recovery, as spans in the trace that its coordinator exports.

The operator sees that a worker or a coordinator is gone, makes another, and sees it take part. For
which recovery that was shows in the status once it is complete: its generation is half of the
trace's id. What a dead operator has seen has no spans.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from regroup_operator.api import names
from regroup_operator.api.resource import Key
from regroup_operator.decide.launchers import launcher_of
from regroup_operator.decide.plan import Action, CreateCoordinator, CreateWorker
from regroup_operator.observe.observed import AnyJob, Observed
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.system.spans import ROOT, Span, Value, trace_id

MOST_PENDING = 48
"""Spans of a job that wait for their recovery."""
STALE_SECONDS = 120.0
"""What is older while the job trains was for no recovery: a spare was replaced."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Round:
    """What one round saw and did. Times are of the wall clock, in seconds."""

    job: AnyJob
    """With the status that was written."""
    observed: Observed
    done: tuple[Action, ...]
    began: float
    """Before its first action."""
    ended: float

    @property
    def wants_pods(self) -> bool:
        """Whether a pod that is gone is a loss."""
        return not (self.job.suspend or self.job.deleting or self.job.status.completion_time)


@dataclass(frozen=True)
class PendingSpan:
    """A span that waits for its trace."""

    name: str
    path: str
    start: float
    end: float
    facts: Mapping[str, Value]


class OperatorTraces:
    """Those of all jobs. `offer` takes spans, and returns at once."""

    def __init__(self, offer: Callable[[Iterable[Span]], None]) -> None:
        self._offer = offer
        self._jobs: dict[Key, JobTrace] = {}

    def note(self, seen: Round) -> None:
        """A round has ended. Whatever goes wrong costs spans alone."""
        job = seen.job
        if not (launcher_of(job).has_coordinator and seen.wants_pods):
            self.forget(job.key)
            return
        trace = self._jobs.get(job.key)
        if trace is None or trace.uid != job.uid:
            trace = self._jobs[job.key] = JobTrace(job.uid)
        try:
            if spans := trace.note(seen):
                self._offer(spans)
        except Exception:
            self.forget(job.key)
            log.exception("%s/%s: cannot export spans", *job.key)

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._jobs.pop(key, None)


class JobTrace:
    """What was done for one job, and is in no trace yet."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self._pending: deque[PendingSpan] = deque(maxlen=MOST_PENDING)
        self._known: set[str] = set()
        """Generations of the recoveries that were complete in the last round."""
        self._live: set[int] = set()
        """Indices of workers, as the last round saw them."""
        self._lost: dict[int, float] = {}
        """Index -> since when it has no live worker."""
        self._starting: dict[int, tuple[str, float]] = {}
        """Index -> pod of a replacement that was made, and when."""
        self._is_led = False
        """Whether a coordinator has ever answered."""
        self._unled_since: float | None = None
        self._successor: tuple[int, float] | None = None
        """Term of a coordinator that has not answered yet, and when it was made."""

    def note(self, seen: Round) -> list[Span]:
        """The spans that have found their trace."""
        self._note_workers(seen)
        self._note_coordinator(seen)
        return [*self._of_recovery(seen), *self._of_succession(seen)]

    # --- what is seen -----------------------------------------------------------------------------

    def _note_workers(self, seen: Round) -> None:
        live = {pod.index for pod in seen.observed.workers if pod.alive}
        for index in self._live - live:
            self._lost.setdefault(index, seen.began)
            self._starting.pop(index, None)
        for action in seen.done:
            if isinstance(action, CreateWorker):
                self._note_replacement(action, seen)
        wanted = _wanted(seen.job)
        self._lost = {i: at for i, at in self._lost.items() if i < wanted and i not in live}
        self._live = live
        self._note_joined(seen)

    def _note_replacement(self, action: CreateWorker, seen: Round) -> None:
        """A worker that is made where none was before is no replacement."""
        since = seen.began if action.index in self._live else None
        since = self._lost.pop(action.index, since)
        if since is None:
            return
        pod = names.worker(seen.job.name, action.index, action.incarnation)
        self._add("replace worker", pod, (since, seen.ended), {"regroup.pod": pod})
        self._starting[action.index] = pod, seen.ended

    def _note_joined(self, seen: Round) -> None:
        report = seen.observed.coordinator.answer
        if report is None or not self._starting:
            return
        here = {member.pod for member in report.members if not member.lost}
        for index, (pod, since) in [*self._starting.items()]:
            if pod in here:
                del self._starting[index]
                self._add("start worker", pod, (since, seen.ended), {"regroup.pod": pod})

    def _note_coordinator(self, seen: Round) -> None:
        view, report = seen.observed.coordinator, seen.observed.coordinator.answer
        is_there = any(pod.alive for pod in seen.observed.coordinators)
        if view.failures or not is_there:
            since = seen.began - max(0.0, view.unanswered_seconds)
            self._unled_since = self._unled_since or since
        for action in seen.done:
            if isinstance(action, CreateCoordinator) and self._is_led:
                start = self._unled_since or seen.began
                facts: dict[str, Value] = {"regroup.term": action.term}
                self._add("replace coordinator", str(action.term), (start, seen.ended), facts)
                self._successor = action.term, seen.ended
        if report is None:
            return
        self._is_led = True
        self._unled_since = None if is_there else self._unled_since
        if self._successor is not None and report.term == self._successor[0]:
            facts, since = {"regroup.term": report.term}, self._successor[1]
            self._add("start coordinator", str(report.term), (since, seen.ended), facts)
            self._successor = None

    def _add(
        self, name: str, of: str, time: tuple[float, float], facts: Mapping[str, Value]
    ) -> None:
        self._pending.append(PendingSpan(name, f"{name} {of}", *time, facts))

    # --- which trace it belongs to ----------------------------------------------------------------

    def _of_recovery(self, seen: Round) -> list[Span]:
        """All that was done until the first recovery that is complete now."""
        complete = [r.generation for r in seen.job.status.recoveries if r.down_seconds is not None]
        fresh = [generation for generation in complete if generation not in self._known]
        self._known = set(complete)
        if fresh:
            return self._take(trace_id(self.uid, fresh[0]), seen.job, lambda _span: True)
        if seen.job.status.phase == "Running":
            recent = [one for one in self._pending if seen.ended - one.end < STALE_SECONDS]
            self._pending = deque(recent, MOST_PENDING)
        return []

    def _of_succession(self, seen: Round) -> list[Span]:
        """What was done for a coordinator whose workers trained on: a trace of its own, under a
        number that no generation has.
        """
        report = seen.observed.coordinator.answer
        if report is None or not _trained_on(report):
            return []
        trace = trace_id(self.uid, f"{report.term}.0")
        spans = self._take(trace, seen.job, lambda span: span.name.endswith("coordinator"))
        if not spans:
            return []
        start, end = min(span.start for span in spans), max(span.end for span in spans)
        facts: dict[str, Value] = {**_about(seen.job), "regroup.term": report.term}
        return [Span(trace, ROOT, "succession", start, end, facts), *spans]

    def _take(self, trace: str, job: AnyJob, fits: Callable[[PendingSpan], bool]) -> list[Span]:
        taken = [span for span in self._pending if fits(span)]
        left = [span for span in self._pending if not fits(span)]
        self._pending = deque(left, MOST_PENDING)
        about = _about(job)
        return [
            Span(trace, one.path, one.name, one.start, one.end, {**about, **one.facts})
            for one in taken
        ]


def _wanted(job: AnyJob) -> int:
    return job.size.replicas + job.size.spares


def _trained_on(report: CoordinatorStatus) -> bool:
    """Whether a coordinator has adopted the generation of a former one."""
    number = report.generation
    return report.phase == "running" and number is not None and number.term < report.term


def _about(job: AnyJob) -> dict[str, Value]:
    return {"regroup.namespace": job.namespace, "regroup.trainingjob": job.name}
