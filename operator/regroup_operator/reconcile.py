"""One reconcile, as a story: read the job, observe, plan, write the status, act, tell.

The status is written before the actions, and only over the object that was read: what the plan must not forget is
durable before anything rests on it, and two operators cannot both act on one state.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from regroup_operator import names
from regroup_operator.act import Hands
from regroup_operator.api import API_VERSION, KIND, MANAGED_BY, TrainingJobSpec
from regroup_operator.cluster import Cluster
from regroup_operator.coordination import Coordinators, Key
from regroup_operator.errors import ClusterError, ConflictError, CoordinatorError, TemplateError
from regroup_operator.metrics import JobSeries
from regroup_operator.nodes import NodeWatch
from regroup_operator.observed import (
    Job,
    Observed,
    Pod,
    format_time,
    read_claim,
    read_disruption_budget,
    read_job,
    read_pod,
    read_service,
)
from regroup_operator.pace import Pace
from regroup_operator.plan import Event, Plan
from regroup_operator.planner import plan
from regroup_operator.pods import claim_name
from regroup_operator.settings import Settings
from regroup_operator.status import THROTTLED, differs

PROGRESS_SECONDS = 30.0
"""How often progress alone is written."""
PROGRESS_WRITES_A_SECOND = 20.0
"""Of all jobs together: what changes with every step must not keep the API server busy."""
ANOTHER_TRY_SECONDS = 1.0
EVENT_SECONDS = 3600.0
"""Coordinators' events older than this are not told again: the API server has forgotten theirs."""
_TOLD_BY_US = frozenset({"Completed", "Failed", "Suspended"})

log = logging.getLogger(__name__)


class Reconciler:
    """Brings one job at a time closer to what it should be."""

    def __init__(
        self,
        cluster: Cluster,
        coordinators: Coordinators,
        nodes: NodeWatch,
        settings: Settings,
        series: JobSeries,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._coordinators = coordinators
        self._nodes = nodes
        self._settings = settings
        self._series = series
        self._now = now
        self._hands = Hands(cluster, coordinators, settings)
        self._apply_errors: dict[Key, str] = {}
        self._written: dict[Key, float] = {}
        """Monotonic time of the last status write."""
        self._pace = Pace(PROGRESS_WRITES_A_SECOND)
        self._told: set[str] = set()
        """Names of Events that exist."""

    async def reconcile(self, key: Key) -> float | None:
        """One round; returns when to look again (None: when something happens). Raises ClusterError."""
        document = await self._cluster.job(*key)
        if document is None or document.get("spec", {}).get("managedBy", MANAGED_BY) != MANAGED_BY:
            self._forget(key)
            return None
        job = read_job(document)
        observed = await self._observe(job)
        what = plan(job, observed, self._now())
        written = await self._write_status(document, job, what)
        if written is None:
            return 0.0
        await self._act(written, observed, what)
        self._follow(written, observed, what)
        await self._tell(written, observed, what)
        return ANOTHER_TRY_SECONDS if self._owes_progress(job, what) else what.look_again_seconds

    def _forget(self, key: Key) -> None:
        self._coordinators.forget(key)
        self._series.forget(key)
        self._nodes.forget(key)
        self._apply_errors.pop(key, None)
        self._written.pop(key, None)

    # --- observe ---------------------------------------------------------------------------------------------------

    async def _observe(self, job: Job) -> Observed:
        pods = await self._pods(job)
        view = self._coordinators.view(job.key, job.status.coordinator_term)
        service, claim, policy, budget = await asyncio.gather(
            self._cluster.service(job.namespace, names.service(job.name, job.launcher)),
            self._claim(job),
            self._network_policy(job),
            self._cluster.disruption_budget(job.namespace, names.disruption_budget(job.name)),
        )
        self._nodes.expect(job.key, {pod.node for pod in pods if pod.node})
        return Observed(
            pods=pods,
            service=read_service(service) if service and _is_ours(service, job) else None,
            network_policy=policy,
            disruption_budget=read_disruption_budget(budget) if budget and _is_ours(budget, job) else None,
            claim=read_claim(claim) if claim else None,
            nodes=await self._nodes.look(
                job.key, _pointed_to(pods, view.failures > 0, set(view.lost_seconds)), job.status.suspected_nodes
            ),
            coordinator=view,
            images=self._images(job.spec),
            apply_error=self._apply_errors.get(job.key, ""),
        )

    async def _pods(self, job: Job) -> tuple[Pod, ...]:
        documents = await self._cluster.pods(job.namespace, names.selector(job.name))
        return tuple(read_pod(document) for document in documents if _is_ours(document, job))

    async def _claim(self, job: Job) -> dict[str, Any] | None:
        name = claim_name(job)
        return await self._cluster.claim(job.namespace, name) if name else None

    async def _network_policy(self, job: Job) -> bool:
        """Whether the NetworkPolicy is there, or not wanted."""
        if job.spec is None or job.spec.network_policy == "None":
            return True
        return await self._cluster.network_policy(job.namespace, names.network_policy(job.name)) is not None

    def _images(self, spec: TrainingJobSpec | None) -> dict[str, str]:
        trainer = (spec.image if spec else None) or self._settings.trainer_image
        return {"trainer": trainer, "coordinator": self._settings.coordinator_image}

    # --- status ----------------------------------------------------------------------------------------------------

    async def _write_status(self, document: dict[str, Any], job: Job, what: Plan) -> Job | None:
        """Write what changed; the job with the new status, None when somebody else was faster."""
        if self._is_due(job, what):
            status = what.status.model_dump(by_alias=True, mode="json", exclude_none=True)
            try:
                await self._cluster.replace_status({**document, "status": status})
            except ConflictError:
                return None
            self._written[job.key] = time.monotonic()
        self._series.saw(job, what.status)
        return replace(job, status=what.status)

    def _is_due(self, job: Job, what: Plan) -> bool:
        if differs(job.status, what.status, ignoring=THROTTLED):
            return True
        return self._owes_progress(job, what) and self._pace.allows()

    def _owes_progress(self, job: Job, what: Plan) -> bool:
        """Whether what changes with every step has not been written for too long."""
        age = time.monotonic() - self._written.get(job.key, float("-inf"))
        return age >= PROGRESS_SECONDS and differs(job.status, what.status)

    # --- act -------------------------------------------------------------------------------------------------------

    async def _act(self, job: Job, observed: Observed, what: Plan) -> None:
        """Carry the plan out in its order. The first refusal ends it, and is shown in the status of the next round."""
        try:
            for action in what.actions:
                await self._hands.carry_out(action, job, observed)
        except CoordinatorError as error:
            log.warning("%s/%s: %s", job.namespace, job.name, error)
        except (ClusterError, TemplateError) as error:
            self._apply_errors[job.key] = str(error)
            raise
        else:
            self._apply_errors.pop(job.key, None)

    # --- follow and tell -------------------------------------------------------------------------------------------

    def _follow(self, job: Job, observed: Observed, what: Plan) -> None:
        self._coordinators.follow(job.key, self._hands.target(job, observed.pods) if what.follow else None)

    async def _tell(self, job: Job, observed: Observed, what: Plan) -> None:
        for event in (*_coordinator_events(observed, self._now()), *what.events):
            name = names.event(job.name, job.uid, event.reason, event.key)
            if name in self._told:
                continue
            await self._cluster.create_event(_event(job, event, name, self._now()))
            self._told.add(name)


def _is_ours(document: dict[str, Any], job: Job) -> bool:
    owners = document["metadata"].get("ownerReferences", [])
    return any(owner.get("controller") and owner["uid"] == job.uid for owner in owners)


def _pointed_to(pods: tuple[Pod, ...], coordinator_fails: bool, lost: set[str]) -> set[str]:
    """Nodes are not polled: only those that something points to are read."""
    return {
        pod.node
        for pod in pods
        if pod.node and (pod.terminating or pod.uid in lost or (coordinator_fails and pod.role == names.COORDINATOR))
    }


def _coordinator_events(observed: Observed, now: datetime) -> list[Event]:
    answer = observed.coordinator.status
    if answer is None:
        return []
    return [
        Event(event.type, event.reason, event.message, f"{answer.term}-{event.sequence}")
        for event in answer.events
        if event.reason not in _TOLD_BY_US and now.timestamp() - event.time < EVENT_SECONDS
    ]


def _event(job: Job, event: Event, name: str, now: datetime) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:1024],
        "firstTimestamp": format_time(now),
        "lastTimestamp": format_time(now),
        "count": 1,
        "source": {"component": "regroup-operator"},
        "reportingComponent": "regroup.dev/operator",
        "reportingInstance": "regroup-operator",
    }
