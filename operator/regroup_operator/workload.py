"""Renders the objects of a job (Secret, Service, NetworkPolicy, claim, coordinator, workers) and what its coordinator
is told. Pure. The pods of launcher torchrun are `torchrun_workload`'s.

Everything runs as a restricted pod (non-root, no capabilities, default seccomp profile, no API credentials). What a
pod learns by environment is described by `environment.AgentEnvironment` and `CoordinatorEnvironment`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Any

from regroup_operator import injection, names
from regroup_operator.api import TrainingJobSpec
from regroup_operator.launcher import own_script
from regroup_operator.observed import Job
from regroup_operator.pods import (
    MOUNTS,
    avoiding,
    container_security,
    directory,
    environment,
    main_of,
    metadata,
    own_image,
    pod_spec,
    ranks_per_worker,
    valid_spec,
    worker,
)
from regroup_operator.replica_groups import workers_per_group
from regroup_operator.settings import Settings
from regroup_operator.status import merge_ledgers
from regroup_operator.torchrun import STORE_PORT
from regroup_trainer.config import TrainConfig
from regroup_trainer.contract import AGENT_METRICS_PORT, COORDINATOR_PORT, DIRECTORY_VARIABLE, TOKEN_FILE, Desired
from regroup_trainer.environment import AgentEnvironment, CoordinatorEnvironment
from regroup_trainer.job_status import CoordinatorStatus

Object = dict[str, Any]
_TOKEN_KEY = TOKEN_FILE.rsplit("/", 1)[1]


# --- what the coordinator is told ------------------------------------------------------------------------------------


def desired(job: Job, spec: TrainingJobSpec, answer: CoordinatorStatus | None) -> Desired:
    """The job as its coordinator should see it, seeded with the account so far."""
    return Desired(
        revision=job.generation,
        namespace=job.namespace,
        job=job.name,
        replicas=spec.replicas,
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        replica_group_size=workers_per_group(spec),
        spares=spec.spares,
        suspend=spec.suspend,
        heartbeat_milliseconds=spec.failure_detection.heartbeat_milliseconds,
        timeout_milliseconds=spec.failure_detection.timeout_milliseconds,
        max_restarts=spec.restart_policy.max_restarts,
        max_hang_restarts=spec.restart_policy.max_hang_restarts,
        straggler_percent=spec.failure_detection.straggler_percent,
        progress_timeout_seconds=spec.failure_detection.progress_timeout_seconds,
        backoff_seconds=spec.restart_policy.backoff_seconds,
        max_backoff_seconds=spec.restart_policy.max_backoff_seconds,
        train=spec.trainer or TrainConfig(),
        script=script.arguments if (script := own_script(spec.template)) else (),
        checkpoint=spec.checkpoint.policy,
        resume=spec.resume.plain,
        directory=directory(job, spec),
        seed=merge_ledgers(job.status, answer),
    )


def token(job: Job, key: bytes) -> str:
    """The job's token. It can be derived again, so that the operator never needs to read Secrets."""
    return hmac.new(key, job.uid.encode(), hashlib.sha256).hexdigest()


# --- small objects ---------------------------------------------------------------------------------------------------


def secret(job: Job, key: bytes) -> Object:
    """The Secret with the job's token."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, names.token(job.name, job.uid)),
        "type": "Opaque",
        "immutable": True,
        "stringData": {_TOKEN_KEY: token(job, key)},
    }


def service(job: Job, term: int) -> Object:
    """The Service in front of the coordinator, or store, of this term alone: a dead one's endpoint is never chosen."""
    role = names.leading_role(job.launcher)
    port = COORDINATOR_PORT if role == names.COORDINATOR else STORE_PORT
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, names.service(job.name, job.launcher)),
        "spec": {
            "selector": names.labels(job.name, role, term=term),
            "ports": [{"name": "status", "port": port, "targetPort": port, "protocol": "TCP"}],
        },
    }


def network_policy(job: Job, settings: Settings) -> Object:
    """Ingress only: the job's own pods on all ports; operator and scraper on the status and metrics ports, if any."""
    own = {"podSelector": {"matchLabels": {names.JOB: job.name}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, names.network_policy(job.name)),
        "spec": {
            "podSelector": {"matchLabels": {names.JOB: job.name}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [own]}, *([_from_outside(settings)] if job.launcher == "regroup" else [])],
        },
    }


def _from_outside(settings: Settings) -> Object:
    rule: Object = {"ports": [{"protocol": "TCP", "port": port} for port in (COORDINATOR_PORT, AGENT_METRICS_PORT)]}
    if settings.network_peers:
        rule["from"] = list(settings.network_peers)
    return rule


def claim(job: Job, spec: TrainingJobSpec) -> Object:
    """The claim of volumeClaimTemplate. It outlives the job (retentionPolicy Retain), so that nobody owns it."""
    template = spec.checkpoint.storage.volume_claim_template if spec.checkpoint.storage else None
    if template is None:
        raise ValueError("spec.checkpoint.storage.volumeClaimTemplate is absent")
    given = template.metadata.model_dump(by_alias=True, exclude_none=True)
    labels = {**given.get("labels", {}), names.JOB: job.name}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": names.claim(job.name),
            "namespace": job.namespace,
            "labels": labels,
            "annotations": given.get("annotations", {}),
        },
        "spec": template.spec.model_dump(by_alias=True, exclude_none=True, mode="json"),
    }


# --- pods ------------------------------------------------------------------------------------------------------------


def coordinator_image(job: Job, settings: Settings) -> str:
    """The operator's image of the release that the job was started with."""
    return job.status.images.get("coordinator", settings.coordinator_image)


def coordinator_pod(job: Job, settings: Settings, wanted: Desired, term: int, excluded: Iterable[str]) -> Object:
    """The coordinator of a term. Its kubelet restarts the container; the pod itself is never restarted."""
    spec = valid_spec(job)
    of = CoordinatorEnvironment.variable
    variables = {of("term"): str(term), of("desired"): wanted.model_dump_json()}
    probe = {"httpGet": {"path": "/healthz", "port": COORDINATOR_PORT}, "timeoutSeconds": 2}
    container = {
        "name": names.COORDINATOR,
        "image": coordinator_image(job, settings),
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "regroup_trainer.coordinator"],
        "env": environment(variables, {of("node"): "spec.nodeName"}),
        "ports": [{"name": "status", "containerPort": COORDINATOR_PORT}],
        "readinessProbe": {**probe, "periodSeconds": 1},
        "livenessProbe": {**probe, "periodSeconds": 5, "failureThreshold": 6, "initialDelaySeconds": 10},
        "resources": settings.coordinator_resources,
        "securityContext": container_security(read_only=True),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": list(MOUNTS),
    }
    pod = {
        **pod_spec(job, spec, settings),
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": spec.checkpoint.termination_grace_seconds,
        "containers": [container],
    }
    labels = names.labels(job.name, names.COORDINATOR, term=term)
    described = metadata(job, names.coordinator(job.name, term), labels)
    return avoiding({"apiVersion": "v1", "kind": "Pod", "metadata": described, "spec": pod}, excluded)


def worker_pod(job: Job, settings: Settings, place: tuple[int, int], address: str, excluded: Iterable[str]) -> Object:
    """A worker: `place` is its index and incarnation, `address` the Service's IP. Raises TemplateError."""
    of = AgentEnvironment.variable
    script = own_script(valid_spec(job).template)  # the agent starts it
    variables = {
        of("coordinator_url"): f"http://{_bracketed(address)}:{COORDINATOR_PORT}",
        of("job"): job.name,
        of("index"): str(place[0]),
        DIRECTORY_VARIABLE: directory(job, valid_spec(job)),
    }
    fields = {
        of("namespace"): "metadata.namespace",
        of("member"): "metadata.uid",
        of("pod"): "metadata.name",
        of("node"): "spec.nodeName",
        of("address"): "status.podIP",
    }
    injected = own_image(valid_spec(job)) is not None
    if injected:
        variables[of("start")] = injection.START
    main = {
        "command": injection.agent_command(script.interpreter if script else "python", injected=injected),
        "env": environment(variables, fields),
        "ports": [{"name": "metrics", "containerPort": AGENT_METRICS_PORT}],
        "volumeMounts": list(MOUNTS),
    }
    pod = worker(job, settings, place, main)
    ranks = {"name": of("ranks"), "value": str(ranks_per_worker(valid_spec(job)))}
    container = main_of(pod)
    container["env"] = [*container["env"], ranks]
    if injected:
        injection.inject(pod, coordinator_image(job, settings), settings.image_pull_policy)
    return avoiding(pod, excluded)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
