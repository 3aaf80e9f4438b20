"""Renders the objects of a job: pods, Service, Secret, NetworkPolicy, claim; and what its coordinator is told. Pure.

Everything runs as a restricted pod (non-root, no capabilities, default seccomp profile, no API credentials). What a
pod learns by environment is described by `contract.AgentEnvironment` and `contract.CoordinatorEnvironment`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Any

from regroup_operator import names
from regroup_operator.api import API_VERSION, KIND, TrainingJobSpec
from regroup_operator.errors import TemplateError
from regroup_operator.merge import strategic_merge
from regroup_operator.observed import Job
from regroup_operator.settings import Settings
from regroup_operator.status import merge_ledgers
from regroup_trainer.config import TrainConfig
from regroup_trainer.contract import (
    AGENT_METRICS_PORT,
    COORDINATOR_PORT,
    TOKEN_FILE,
    VOLUME_MOUNT,
    AgentEnvironment,
    CoordinatorEnvironment,
    CoordinatorStatus,
    Desired,
)

Object = dict[str, Any]
USER = 1000
"""User and group of our images."""
GPU = "nvidia.com/gpu"
_TOKEN_FOLDER, _TOKEN_KEY = TOKEN_FILE.rsplit("/", 1)


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
        replica_group_size=spec.elastic_policy.replica_group_size if spec.elastic_policy else 1,
        suspend=spec.suspend,
        heartbeat_milliseconds=spec.failure_detection.heartbeat_milliseconds,
        timeout_milliseconds=spec.failure_detection.timeout_milliseconds,
        max_restarts=spec.restart_policy.max_restarts,
        backoff_seconds=spec.restart_policy.backoff_seconds,
        max_backoff_seconds=spec.restart_policy.max_backoff_seconds,
        train=spec.trainer or TrainConfig(),
        checkpoint=spec.checkpoint.policy,
        resume=spec.resume.plain,
        directory=directory(job, spec),
        seed=merge_ledgers(job.status, answer),
    )


def directory(job: Job, spec: TrainingJobSpec) -> str:
    """The job's own folder on the volume, as its pods see it."""
    storage = spec.checkpoint.storage
    sub_path = storage.persistent_volume_claim.sub_path if storage and storage.persistent_volume_claim else None
    parts = [VOLUME_MOUNT, sub_path.strip("/") if sub_path else "", job.namespace, f"{job.name}-{names.short(job.uid)}"]
    return "/".join(part for part in parts if part)


def token(job: Job, key: bytes) -> str:
    """The job's token. It can be derived again, so that the operator never needs to read Secrets."""
    return hmac.new(key, job.uid.encode(), hashlib.sha256).hexdigest()


# --- small objects ---------------------------------------------------------------------------------------------------


def owner(job: Job) -> Object:
    """The reference that makes the job own an object."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _metadata(job: Job, name: str, labels: Object | None = None) -> Object:
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {names.JOB: job.name, **(labels or {})},
        "ownerReferences": [owner(job)],
    }


def secret(job: Job, key: bytes) -> Object:
    """The Secret with the job's token."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, names.token(job.name, job.uid)),
        "type": "Opaque",
        "immutable": True,
        "stringData": {_TOKEN_KEY: token(job, key)},
    }


def service(job: Job, term: int) -> Object:
    """The Service in front of the coordinator of this term alone: a dead one's endpoint is never chosen."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, names.service(job.name)),
        "spec": {
            "selector": names.labels(job.name, names.COORDINATOR, term=term),
            "ports": [{"name": "status", "port": COORDINATOR_PORT, "targetPort": COORDINATOR_PORT, "protocol": "TCP"}],
        },
    }


def network_policy(job: Job, settings: Settings) -> Object:
    """Ingress only: the job's own pods on all ports, operator and scraper on the status and metrics ports."""
    ports = [{"protocol": "TCP", "port": port} for port in (COORDINATOR_PORT, AGENT_METRICS_PORT)]
    outside: Object = {"ports": ports}
    if settings.network_peers:
        outside["from"] = list(settings.network_peers)
    own = {"podSelector": {"matchLabels": {names.JOB: job.name}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(job, names.network_policy(job.name)),
        "spec": {
            "podSelector": {"matchLabels": {names.JOB: job.name}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [own]}, outside],
        },
    }


def claim(job: Job, spec: TrainingJobSpec) -> Object:
    """The claim of volumeClaimTemplate. It outlives the job (retentionPolicy Retain), so that nobody owns it."""
    template = spec.checkpoint.storage.volume_claim_template if spec.checkpoint.storage else None
    if template is None:
        raise ValueError("spec.checkpoint.storage.volumeClaimTemplate is absent")
    metadata = template.metadata.model_dump(by_alias=True, exclude_none=True)
    labels = {**metadata.get("labels", {}), names.JOB: job.name}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": names.claim(job.name),
            "namespace": job.namespace,
            "labels": labels,
            "annotations": metadata.get("annotations", {}),
        },
        "spec": template.spec.model_dump(by_alias=True, exclude_none=True, mode="json"),
    }


def claim_name(job: Job) -> str | None:
    """The claim that the job's pods mount; None when they have a folder of their own."""
    storage = job.spec.checkpoint.storage if job.spec else None
    if storage is None or storage.empty_dir is not None:
        return None
    return storage.persistent_volume_claim.claim_name if storage.persistent_volume_claim else names.claim(job.name)


# --- pods ------------------------------------------------------------------------------------------------------------

_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}


def _container_security(*, read_only: bool) -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": read_only,
    }


_MOUNTS = [
    {"name": "checkpoints", "mountPath": VOLUME_MOUNT},
    {"name": "token", "mountPath": _TOKEN_FOLDER, "readOnly": True},
    {"name": "scratch", "mountPath": "/tmp"},
]


def _volumes(job: Job, spec: TrainingJobSpec) -> list[Object]:
    name = claim_name(job)
    folder = spec.checkpoint.storage.empty_dir if spec.checkpoint.storage else None
    checkpoints: Object
    if name is not None:
        checkpoints = {"persistentVolumeClaim": {"claimName": name}}
    else:
        checkpoints = {"emptyDir": folder.model_dump(by_alias=True, exclude_none=True) if folder else {}}
    return [
        {"name": "checkpoints", **checkpoints},
        {"name": "token", "secret": {"secretName": names.token(job.name, job.uid), "defaultMode": 0o440}},
        {"name": "scratch", "emptyDir": {}},
    ]


def _field(path: str) -> Object:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def _environment(variables: dict[str, str], fields: dict[str, str]) -> list[Object]:
    scratch = [{"name": "HOME", "value": "/tmp"}, {"name": "TMPDIR", "value": "/tmp"}]
    given = [{"name": name, "value": value} for name, value in variables.items()]
    return [*scratch, *given, *({"name": name, **_field(path)} for name, path in fields.items())]


def _pod_spec(job: Job, spec: TrainingJobSpec, settings: Settings) -> Object:
    """What coordinator and workers share."""
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": dict(_POD_SECURITY),
        "volumes": _volumes(job, spec),
    }
    if spec.scheduling.priority_class_name:
        pod["priorityClassName"] = spec.scheduling.priority_class_name
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return pod


def coordinator_pod(job: Job, settings: Settings, wanted: Desired, term: int, excluded: Iterable[str]) -> Object:
    """The coordinator of a term. Its kubelet restarts the container; the pod itself is never restarted."""
    spec = _spec(job)
    of = CoordinatorEnvironment.variable
    variables = {of("term"): str(term), of("desired"): wanted.model_dump_json()}
    probe = {"httpGet": {"path": "/healthz", "port": COORDINATOR_PORT}, "timeoutSeconds": 2}
    container = {
        "name": names.COORDINATOR,
        "image": job.status.images.get("coordinator", settings.coordinator_image),
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "regroup_trainer.coordinator"],
        "env": _environment(variables, {of("node"): "spec.nodeName"}),
        "ports": [{"name": "status", "containerPort": COORDINATOR_PORT}],
        "readinessProbe": {**probe, "periodSeconds": 1},
        "livenessProbe": {**probe, "periodSeconds": 5, "failureThreshold": 6, "initialDelaySeconds": 10},
        "resources": settings.coordinator_resources,
        "securityContext": _container_security(read_only=True),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": list(_MOUNTS),
    }
    pod = {
        **_pod_spec(job, spec, settings),
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": spec.checkpoint.termination_grace_seconds,
        "containers": [container],
    }
    metadata = _metadata(job, names.coordinator(job.name, term), names.labels(job.name, names.COORDINATOR, term=term))
    return _avoiding({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}, excluded)


def worker_pod(job: Job, settings: Settings, place: tuple[int, int], address: str, excluded: Iterable[str]) -> Object:
    """A worker: `place` is its index and incarnation, `address` the Service's IP. Raises TemplateError."""
    index, incarnation = place
    spec = _spec(job)
    rendered = strategic_merge(
        {"metadata": {}, "spec": _worker_spec(job, spec, settings, index, address)}, spec.template or {}
    )
    extra = rendered["metadata"]
    metadata = _metadata(job, names.worker(job.name, index, incarnation))
    metadata["labels"] = {**extra.get("labels", {}), **names.labels(job.name, names.WORKER, index=index)}
    metadata["annotations"] = dict(extra.get("annotations", {}))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": rendered["spec"]}
    _set_ranks(pod["spec"], spec)
    return _avoiding(pod, excluded)


def _spec(job: Job) -> TrainingJobSpec:
    if job.spec is None:
        raise ValueError(f"{job.namespace}/{job.name} has no valid spec: no pods are made from it")
    return job.spec


def _worker_spec(job: Job, spec: TrainingJobSpec, settings: Settings, index: int, address: str) -> Object:
    of = AgentEnvironment.variable
    variables = {
        of("coordinator_url"): f"http://{_bracketed(address)}:{COORDINATOR_PORT}",
        of("job"): job.name,
        of("index"): str(index),
    }
    fields = {
        of("namespace"): "metadata.namespace",
        of("member"): "metadata.uid",
        of("pod"): "metadata.name",
        of("node"): "spec.nodeName",
        of("address"): "status.podIP",
    }
    container = {
        "name": names.MAIN_CONTAINER,
        "image": job.status.images.get("trainer", spec.image or settings.trainer_image),
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "regroup_trainer.agent"],
        "env": _environment(variables, fields),
        "ports": [{"name": "metrics", "containerPort": AGENT_METRICS_PORT}],
        "resources": spec.resources.model_dump(by_alias=True, exclude_none=True),
        "securityContext": _container_security(read_only=spec.image is None),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*_MOUNTS, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = _pod_spec(job, spec, settings)
    pod["volumes"] = [*pod["volumes"], {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    return {
        **pod,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": spec.checkpoint.termination_grace_seconds,
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_apart(job)]}},
        "containers": [container],
    }


def _apart(job: Job) -> Object:
    """Workers prefer nodes of their own: the loss of one node then costs one worker."""
    selector = {"matchLabels": names.labels(job.name, names.WORKER)}
    return {"weight": 100, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}}


def _set_ranks(pod: Object, spec: TrainingJobSpec) -> None:
    """nprocPerNode, which `auto` takes from the merged GPU limit."""
    main = next(c for c in pod["containers"] if c["name"] == names.MAIN_CONTAINER)
    ranks = _gpus(main) if spec.nproc_per_node == "auto" else spec.nproc_per_node
    main["env"] = [*main["env"], {"name": AgentEnvironment.variable("ranks"), "value": str(ranks or 1)}]


def _gpus(container: Object) -> int:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    limit = limits.get(GPU, 0) if isinstance(limits, dict) else 0
    if not str(limit).isdecimal():
        raise TemplateError(f"the limit {GPU}={limit!r} must be a whole number: ranks are counted by it")
    return int(limit)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _avoiding(pod: Object, excluded: Iterable[str]) -> Object:
    """Keep the pod off these nodes, in *every* term of its node affinity (terms are alternatives)."""
    excluded = sorted(set(excluded))
    if not excluded:
        return pod
    requirements = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in excluded]
    spec = pod["spec"]
    affinity = dict(spec.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    required = dict(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*term.get("matchFields", []), *requirements]} for term in terms
    ]
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = required
    affinity["nodeAffinity"] = node_affinity
    annotations = {**pod["metadata"].get("annotations", {}), names.EXCLUDED_NODES: ",".join(excluded)}
    return {
        **pod,
        "metadata": {**pod["metadata"], "annotations": annotations},
        "spec": {**spec, "affinity": affinity},
    }
