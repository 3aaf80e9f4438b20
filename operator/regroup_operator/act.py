"""Carries out the actions of a plan, one at a time: the only place where a decision becomes a request."""

from __future__ import annotations

import logging

from regroup_operator import disruption, names, torchrun_workload, workload
from regroup_operator.api import TrainingJobSpec
from regroup_operator.cluster import Cluster
from regroup_operator.coordination import Coordinators, Target
from regroup_operator.observed import Job, Observed, Pod
from regroup_operator.plan import (
    Action,
    CreateClaim,
    CreateCoordinator,
    CreateStore,
    CreateWorker,
    DeleteJob,
    DeletePod,
    EnsureAccess,
    EnsureDisruptionBudget,
    EnsureService,
    PostLost,
    PutDesired,
)
from regroup_operator.settings import Settings
from regroup_trainer.contract import Desired, Lost

log = logging.getLogger(__name__)


class Hands:
    """Acts on the API server and on coordinators. Raises SettingsError when the operator's key is missing."""

    def __init__(self, cluster: Cluster, coordinators: Coordinators, settings: Settings) -> None:
        self._cluster = cluster
        self._coordinators = coordinators
        self._settings = settings
        self._key = settings.key()

    async def carry_out(self, action: Action, job: Job, observed: Observed) -> None:
        """Do it. `job` has the status that was just written. Raises ClusterError or CoordinatorError."""
        log.info("%s/%s: %s", job.namespace, job.name, _short(action))
        match action:
            case EnsureAccess():
                await self._ensure_access(job)
            case EnsureService(term):
                await self._cluster.apply_service(workload.service(job, term))
            case EnsureDisruptionBudget(fewest):
                await self._cluster.apply_disruption_budget(disruption.disruption_budget(job, fewest))
            case CreateClaim():
                await self._cluster.create_claim(workload.claim(job, _spec(job)))
            case CreateCoordinator():
                await self._create_coordinator(action, job, observed)
            case CreateStore(term, excluded):
                await self._cluster.create_pod(torchrun_workload.store_pod(job, self._settings, term, excluded))
            case CreateWorker():
                await self._create_worker(action, job, observed)
            case DeletePod(pod):
                await self._cluster.delete_pod(job.namespace, pod.name, pod.uid, force=action.force)
            case DeleteJob():
                await self._cluster.delete_job(job.namespace, job.name, job.uid)
            case PutDesired() | PostLost():
                await self._tell_coordinator(action, job, observed)

    def target(self, job: Job, pods: tuple[Pod, ...]) -> Target | None:
        """The coordinator of the current term, also while it is asked to go; None while it has no address."""
        term = job.status.coordinator_term
        runs = ("Running", "Unknown")
        leading = (p for p in pods if p.role == names.COORDINATOR and p.term == term and p.phase in runs)
        pod = next((p for p in leading if p.ip), None)
        return Target(pod.uid, pod.ip, term, workload.token(job, self._key)) if pod else None

    async def _ensure_access(self, job: Job) -> None:
        if job.launcher == "regroup":
            await self._cluster.create_secret(workload.secret(job, self._key))
        if job.spec is not None and job.spec.network_policy == "Isolated":
            await self._cluster.apply_network_policy(workload.network_policy(job, self._settings))

    async def _create_coordinator(self, action: CreateCoordinator, job: Job, observed: Observed) -> None:
        wanted = self._desired(job, observed)
        pod = workload.coordinator_pod(job, self._settings, wanted, action.term, action.excluded_nodes)
        await self._cluster.create_pod(pod)

    async def _create_worker(self, action: CreateWorker, job: Job, observed: Observed) -> None:
        address = observed.service.address if observed.service else ""
        place = (action.index, action.incarnation)
        render = torchrun_workload.agent_pod if job.launcher == "torchrun" else workload.worker_pod
        pod = render(job, self._settings, place, address, action.excluded_nodes)
        await self._cluster.create_pod(pod)

    async def _tell_coordinator(self, action: PutDesired | PostLost, job: Job, observed: Observed) -> None:
        target = self.target(job, observed.pods)
        if target is None:
            return
        if isinstance(action, PutDesired):
            await self._coordinators.put_desired(target, self._desired(job, observed))
        else:
            await self._coordinators.post_lost(target, Lost(members=action.members, reason=action.reason))

    def _desired(self, job: Job, observed: Observed) -> Desired:
        return workload.desired(job, _spec(job), observed.coordinator.status)


def _spec(job: Job) -> TrainingJobSpec:
    if job.spec is None:
        raise ValueError(f"{job.namespace}/{job.name}: the plan rests on a spec that is invalid")
    return job.spec


def _short(action: Action) -> str:
    if isinstance(action, DeletePod):
        return f"delete pod {action.pod.name}{' by force' if action.force else ''}: {action.why}"
    return str(action)
