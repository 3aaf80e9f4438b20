"""The Events of jobs: what a coordinator and a status have to tell, and how each is made once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus

from regroup_operator.api import names
from regroup_operator.api.resource import API_VERSION, KIND, Key, Object
from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.api.timestamps import format_time, parse_time
from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.event_limit import EventLimit
from regroup_operator.decide.plan import Event
from regroup_operator.errors import ClusterError
from regroup_operator.informer.recent_names import RecentNames
from regroup_operator.observe.observed import CoordinatorView
from regroup_trainer.protocol.job_status import JobEvent

EVENTS_REMEMBERED = 10_000
"""Names of Events that exist. A forgotten one costs a request that the API server answers with a
conflict.
"""
EVENT_SECONDS = 3600.0
"""Events of coordinators that are older are not emitted again: the API server has dropped them."""
_EMITTED_BY_PLANS = frozenset({"Completed", "Failed", "Suspended"})
log = logging.getLogger(__name__)


def coordinator_events(view: CoordinatorView, now: datetime) -> list[tuple[int, Event | None]]:
    """The events that the coordinator reports and that are not emitted yet, with their sequences,
    the oldest first. None: it is too old, or plans emit it.
    """
    if (status := view.status) is None:
        return []
    return [
        (event.sequence, _to_emit(event, f"{status.term}-{event.sequence}", now))
        for event in sorted(status.events, key=lambda event: event.sequence)
        if event.sequence > view.emitted
    ]


def _to_emit(event: JobEvent, key: str, now: datetime) -> Event | None:
    if event.reason in _EMITTED_BY_PLANS or now.timestamp() - event.time >= EVENT_SECONDS:
        return None
    return Event(event.type, event.reason, event.message, key)


def remembered_events(status: TrainingJobStatus, now: datetime) -> list[tuple[str, Event]]:
    """Names and events that the status remembers and the API server may not have dropped yet."""
    return [
        (event.name, Event(event.type, event.reason, event.message, event.name))
        for event in status.recent_events
        if (now - parse_time(event.time)).total_seconds() < EVENT_SECONDS
    ]


class EventWriter:
    """Makes each Event once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._emitted = RecentNames(EVENTS_REMEMBERED)
        self._limit = EventLimit()

    async def emit(self, key: Key, uid: str, event: Event) -> bool:
        """Emit an event, unless one of its reason and key was emitted."""
        name = names.event(key[1], uid, event.reason, event.key)
        return await self.emit_named(key, uid, name, event)

    async def emit_named(self, key: Key, uid: str, name: str, event: Event) -> bool:
        """Emit an event that is new. One above the limit, or that is refused, is left out, which
        the result says; what a coordinator or the status still lists is emitted when its turn
        comes. One that no other try would bring counts as emitted.
        """
        if name in self._emitted:
            return True
        if not self._limit.allows(key):
            return False
        now = datetime.now(UTC)
        try:
            await self._cluster.create_event(_event_object(key, uid, event, name, now))
        except ClusterError as error:  # a quota, for instance: the job does without
            self._limit.note(key, refused=True)
            log.warning("%s/%s: cannot make an event: %s", *key, error)
            return error.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
        self._limit.note(key, refused=False)
        self._emitted.add(name)
        return True

    async def emit_reported(
        self, key: Key, uid: str, view: CoordinatorView, note: Callable[[int], None]
    ) -> bool:
        """Emit in their order what the coordinator reports, and note the sequence of each. What
        follows one that is refused waits for it. Returns whether all is emitted.
        """
        for sequence, event in coordinator_events(view, datetime.now(UTC)):
            if event is not None and not await self.emit(key, uid, event):
                return False
            note(sequence)
        return True

    def due(self, key: Key) -> float | None:
        """Seconds until a refused Event of the job may be tried again; None: none is waited for."""
        return self._limit.due(key)

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._limit.forget(key)


def _event_object(key: Key, uid: str, event: Event, name: str, now: datetime) -> Object:
    namespace, about = key
    moment = format_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": namespace,
            "name": about,
            "uid": uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:1024],
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        "source": {"component": "regroup-operator"},
        "reportingComponent": "regroup.dev/operator",
        "reportingInstance": "regroup-operator",
    }
