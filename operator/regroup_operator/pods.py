"""What all pods of a job share: owner, restricted security, volumes, environment, placement. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from regroup_operator import names
from regroup_operator.api import API_VERSION, KIND, TrainingJobSpec
from regroup_operator.errors import TemplateError
from regroup_operator.launcher import main_container
from regroup_operator.merge import strategic_merge
from regroup_operator.observed import Job
from regroup_operator.replica_groups import GPU
from regroup_operator.settings import Settings
from regroup_trainer.contract import TOKEN_FILE, VOLUME_MOUNT

Object = dict[str, Any]
USER = 1000
"""User and group of our images."""


# --- identity --------------------------------------------------------------------------------------------------------


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


def metadata(job: Job, name: str, labels: Object | None = None) -> Object:
    """Metadata of an object of the job."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {names.JOB: job.name, **(labels or {})},
        "ownerReferences": [owner(job)],
    }


def claim_name(job: Job) -> str | None:
    """The claim that the job's pods mount; None when they have a folder of their own."""
    storage = job.spec.checkpoint.storage if job.spec else None
    if storage is None or storage.empty_dir is not None:
        return None
    return storage.persistent_volume_claim.claim_name if storage.persistent_volume_claim else names.claim(job.name)


def valid_spec(job: Job) -> TrainingJobSpec:
    """The spec. Raises ValueError while it is invalid: no pods are made from it."""
    if job.spec is None:
        raise ValueError(f"{job.namespace}/{job.name} has no valid spec: no pods are made from it")
    return job.spec


def directory(job: Job, spec: TrainingJobSpec) -> str:
    """The job's own folder on the volume, as its pods see it."""
    storage = spec.checkpoint.storage
    sub_path = storage.persistent_volume_claim.sub_path if storage and storage.persistent_volume_claim else None
    parts = [VOLUME_MOUNT, sub_path.strip("/") if sub_path else "", job.namespace, f"{job.name}-{names.short(job.uid)}"]
    return "/".join(part for part in parts if part)


# --- parts of a pod --------------------------------------------------------------------------------------------------

_RESOLVER = ({"name": "timeout", "value": "1"}, {"name": "attempts", "value": "2"})
"""c10d looks up the name of each address that it connects to, twice. A name server that died, perhaps with the node
that the ranks recover from, would hold them up for twenty seconds by default; so it is four."""
_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CHECKPOINTS = {"name": "checkpoints", "mountPath": VOLUME_MOUNT}
_TOKEN = {"name": "token", "mountPath": TOKEN_FILE.rsplit("/", 1)[0], "readOnly": True}
_SCRATCH = {"name": "scratch", "mountPath": "/tmp"}
MOUNTS = (_CHECKPOINTS, _TOKEN, _SCRATCH)
"""Of coordinators and agents."""
MOUNTS_WITHOUT_TOKEN = (_CHECKPOINTS, _SCRATCH)
"""Of workers that nobody asks for a token."""


def container_security(*, read_only: bool) -> Object:
    """What a restricted namespace asks of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": read_only,
    }


def environment(variables: dict[str, str], fields: dict[str, str]) -> list[Object]:
    """Variables with values, and those that the kubelet fills in from a field of the pod."""
    scratch = [{"name": "HOME", "value": "/tmp"}, {"name": "TMPDIR", "value": "/tmp"}]
    given = [{"name": name, "value": value} for name, value in variables.items()]
    return [*scratch, *given, *({"name": name, **_field(path)} for name, path in fields.items())]


def _field(path: str) -> Object:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def pod_spec(job: Job, spec: TrainingJobSpec, settings: Settings) -> Object:
    """What all pods share; the token's volume is there when the launcher has a coordinator that asks for it."""
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "dnsConfig": {"options": list(_RESOLVER)},
        "securityContext": dict(_SECURITY),
        "volumes": _volumes(job, spec),
    }
    if spec.scheduling.priority_class_name:
        pod["priorityClassName"] = spec.scheduling.priority_class_name
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return pod


def _volumes(job: Job, spec: TrainingJobSpec) -> list[Object]:
    name = claim_name(job)
    folder = spec.checkpoint.storage.empty_dir if spec.checkpoint.storage else None
    checkpoints: Object
    if name is not None:
        checkpoints = {"persistentVolumeClaim": {"claimName": name}}
    else:
        checkpoints = {"emptyDir": folder.model_dump(by_alias=True, exclude_none=True) if folder else {}}
    token = {"name": "token", "secret": {"secretName": names.token(job.name, job.uid), "defaultMode": 0o440}}
    return [
        {"name": "checkpoints", **checkpoints},
        *([token] if spec.launcher == "regroup" else []),
        {"name": "scratch", "emptyDir": {}},
    ]


# --- workers ---------------------------------------------------------------------------------------------------------


def worker(job: Job, settings: Settings, place: tuple[int, int], main: Object) -> Object:
    """A worker pod with the user's template laid over it.

    `place` is its index and incarnation; `main` holds of the main container what depends on the launcher: command, env,
    ports, volumeMounts. The command stays ours, whatever the template says.
    """
    index, incarnation = place
    spec = valid_spec(job)
    base = {"metadata": {}, "spec": _worker_spec(job, spec, settings, main)}
    rendered = strategic_merge(base, spec.template or {})
    container = main_of(rendered)
    container["command"] = main["command"]
    container.pop("args", None)
    extra = rendered["metadata"]
    described = metadata(job, names.worker(job.name, index, incarnation))
    described["labels"] = {**extra.get("labels", {}), **names.labels(job.name, names.WORKER, index=index)}
    described["annotations"] = dict(extra.get("annotations", {}))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": described, "spec": rendered["spec"]}


def main_of(pod: Object) -> Object:
    """The main container of a rendered worker."""
    found: Object = next(c for c in pod["spec"]["containers"] if c["name"] == names.MAIN_CONTAINER)
    return found


def own_image(spec: TrainingJobSpec) -> str | None:
    """The image that the job names for its workers; None: the operator's trainer image."""
    named: str | None = main_container(spec.template).get("image") or spec.image
    return named


def trainer_image(job: Job, spec: TrainingJobSpec, settings: Settings) -> str:
    """The image of workers, fixed at the start."""
    return job.status.images.get("trainer", spec.image or settings.trainer_image)


def _worker_spec(job: Job, spec: TrainingJobSpec, settings: Settings, main: Object) -> Object:
    container = {
        "name": names.MAIN_CONTAINER,
        "image": trainer_image(job, spec, settings),
        "imagePullPolicy": settings.image_pull_policy,
        **main,
        "resources": spec.resources.model_dump(by_alias=True, exclude_none=True),
        "securityContext": container_security(read_only=own_image(spec) is None),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*main["volumeMounts"], {"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = pod_spec(job, spec, settings)
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


def ranks_per_worker(spec: TrainingJobSpec) -> int:
    """nprocPerNode, which `auto` takes from the limit of GPUs, wherever it is given. Raises TemplateError."""
    if spec.nproc_per_node != "auto":
        return spec.nproc_per_node
    given = spec.resources.model_dump(by_alias=True, exclude_none=True)
    merged = strategic_merge(given, main_container(spec.template).get("resources") or {})
    limits = merged.get("limits")
    limit = limits.get(GPU, 0) if isinstance(limits, dict) else 0
    if not str(limit).isdecimal():
        raise TemplateError(f"the limit {GPU}={limit!r} must be a whole number: ranks are counted by it")
    return int(limit) or 1


def avoiding(pod: Object, excluded: Iterable[str]) -> Object:
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
