"""What all pods of a job share: owner, restricted security, volumes, environment, placement.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from regroup_operator.api import names
from regroup_operator.api.replica_groups import GPU
from regroup_operator.api.resource import API_VERSION, KIND, Object
from regroup_operator.api.settings import Settings
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.template_merge import strategic_merge
from regroup_operator.api.user_script import main_container
from regroup_operator.errors import TemplateError
from regroup_operator.observe.observed import Job, JobObject
from regroup_operator.render.exact_image import as_recorded
from regroup_operator.render.torchrun_commands import STORE_PORT
from regroup_trainer.protocol.environment import COORDINATOR_PORT, TOKEN_FILE, VOLUME_MOUNT


@dataclass(frozen=True)
class LauncherObjects:
    """What differs between the objects of the launchers."""

    leading_role: str
    """Role of the one pod that all workers connect to."""
    port: int
    """Where that pod listens."""
    has_token: bool
    """Whether its pods authenticate with the job's token, and serve status and metrics to the
    operator and to scrapers.
    """


LAUNCHER_OBJECTS = {
    "regroup": LauncherObjects(names.COORDINATOR, COORDINATOR_PORT, has_token=True),
    "torchrun": LauncherObjects(names.STORE, STORE_PORT, has_token=False),
}
USER = 1000
"""User and group of the images of Regroup."""
LAST_LINES = "FallbackToLogsOnError"
"""Policy of a container that shows the last lines of its log where it has written no message."""


# --- identity -------------------------------------------------------------------------------------


def owner(job: JobObject) -> Object:
    """The reference that makes the job own an object."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(job: JobObject, name: str, labels: Object | None = None) -> Object:
    """Metadata of an object of the job."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {names.JOB: job.name, **(labels or {})},
        "ownerReferences": [owner(job)],
    }


def claim_name(job: JobObject) -> str | None:
    """The claim that the job's pods mount; None when they have a folder of their own."""
    storage = job.storage
    if storage is None or storage.empty_dir is not None:
        return None
    return (
        storage.persistent_volume_claim.claim_name
        if storage.persistent_volume_claim
        else names.claim(job.name)
    )


def directory(job: Job) -> str:
    """The job's own folder on the volume, as its pods see it."""
    return f"{volume_mount(job)['mountPath']}/{job.namespace}/{job.name}-{names.short(job.uid)}"


def volume_mount(job: Job) -> Object:
    """Where pods see the volume. Of a volume with a subPath they see nothing else, at the path at
    which it lies there: pods that an older operator made see the whole volume.
    """
    storage = job.spec.checkpoint.storage
    claim = storage.persistent_volume_claim if storage else None
    sub_path = claim.sub_path.strip("/") if claim and claim.sub_path else ""
    if not sub_path:
        return {"name": "checkpoints", "mountPath": VOLUME_MOUNT}
    return {
        "name": "checkpoints",
        "mountPath": f"{VOLUME_MOUNT}/{sub_path}",
        "subPath": sub_path,
    }


# --- parts of a pod -------------------------------------------------------------------------------

_RESOLVER = ({"name": "timeout", "value": "1"}, {"name": "attempts", "value": "2"})
"""c10d looks up the name of each address that it connects to, twice. A name server that died,
perhaps with the node that the ranks recover from, delays them by twenty seconds by default, and by
four with these options.
"""
SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_TOKEN = {"name": "token", "mountPath": TOKEN_FILE.rsplit("/", 1)[0], "readOnly": True}
_SCRATCH = {"name": "scratch", "mountPath": "/tmp"}


def mounts(job: Job) -> list[Object]:
    """Volume mounts of coordinators and workers. The token's is one when the launcher uses it."""
    token = (_TOKEN,) if LAUNCHER_OBJECTS[job.launcher].has_token else ()
    return [volume_mount(job), *(dict(mount) for mount in (*token, _SCRATCH))]


def container_security(*, read_only: bool) -> Object:
    """The security context that a restricted namespace demands of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": read_only,
    }


def environment(variables: dict[str, str], fields: dict[str, str]) -> list[Object]:
    """Environment variables with values, and those that the kubelet fills from a field of the
    pod.
    """
    scratch = [{"name": "HOME", "value": "/tmp"}, {"name": "TMPDIR", "value": "/tmp"}]
    given = [{"name": name, "value": value} for name, value in variables.items()]
    return [*scratch, *given, *({"name": name, **_field(path)} for name, path in fields.items())]


def _field(path: str) -> Object:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def pod_spec(job: Job, settings: Settings) -> Object:
    """What all pods share. The token's volume is part of it when the launcher uses the token."""
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "dnsConfig": {"options": list(_RESOLVER)},
        "securityContext": dict(SECURITY),
        "volumes": _volumes(job),
    }
    if job.spec.scheduling.priority_class_name:
        pod["priorityClassName"] = job.spec.scheduling.priority_class_name
    if settings.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return pod


def _volumes(job: Job) -> list[Object]:
    name = claim_name(job)
    storage = job.spec.checkpoint.storage
    folder = storage.empty_dir if storage else None
    checkpoints: Object
    if name is not None:
        checkpoints = {"persistentVolumeClaim": {"claimName": name}}
    else:
        checkpoints = {
            "emptyDir": folder.model_dump(by_alias=True, exclude_none=True) if folder else {}
        }
    token = {
        "name": "token",
        "secret": {"secretName": names.token(job.name, job.uid), "defaultMode": 0o440},
    }
    return [
        {"name": "checkpoints", **checkpoints},
        *([token] if LAUNCHER_OBJECTS[job.launcher].has_token else []),
        {"name": "scratch", "emptyDir": {}},
    ]


# --- workers --------------------------------------------------------------------------------------


def worker(job: Job, settings: Settings, place: tuple[int, int], main: Object) -> Object:
    """A worker pod, with the user's template merged over it.

    `place` is its index and incarnation. `main` has the parts of the main container that depend on
    the launcher: command, env, ports, volumeMounts. The template cannot change the command.
    """
    index, incarnation = place
    base = {"metadata": {}, "spec": _worker_spec(job, settings, main)}
    rendered = strategic_merge(base, job.spec.template or {})
    container = main_of(rendered)
    container["command"] = main["command"]
    container["image"] = as_recorded(container["image"], trainer_image(job, settings))
    container.pop("args", None)
    if prepares := rendered["spec"].get("initContainers"):
        shown = {"image": container["image"], "terminationMessagePolicy": LAST_LINES}
        rendered["spec"]["initContainers"] = [{**shown, **c} for c in prepares]
    extra = rendered["metadata"]
    described = metadata(job, names.worker(job.name, index, incarnation))
    described["labels"] = {
        **extra.get("labels", {}),
        **names.labels(job.name, names.WORKER, index=index),
    }
    described["annotations"] = dict(extra.get("annotations", {}))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": described, "spec": rendered["spec"]}


def set_variables(pod: Object, variables: dict[str, str]) -> None:
    """Set variables of the main container, whatever the template says of them."""
    container = main_of(pod)
    others = [entry for entry in container["env"] if entry["name"] not in variables]
    given = [{"name": name, "value": value} for name, value in variables.items()]
    container["env"] = [*others, *given]


def main_of(pod: Object) -> Object:
    """The main container of a rendered worker."""
    found: Object = next(c for c in pod["spec"]["containers"] if c["name"] == names.MAIN_CONTAINER)
    return found


def user_image(spec: TrainingJobSpec) -> str | None:
    """The image that the job names for its workers; None: the operator's trainer image is used."""
    named: str | None = main_container(spec.template).get("image") or spec.image
    return named


def trainer_image(job: Job, settings: Settings) -> str:
    """The image of workers, fixed at the start. A template's is fixed once its digest is known."""
    image = job.status.images.get("trainer", job.spec.image or settings.trainer_image)
    named = main_container(job.spec.template).get("image")
    return as_recorded(named, image) if named else image


def _worker_spec(job: Job, settings: Settings, main: Object) -> Object:
    spec = job.spec
    container = {
        "name": names.MAIN_CONTAINER,
        "image": trainer_image(job, settings),
        "imagePullPolicy": settings.image_pull_policy,
        **main,
        "resources": spec.resources.model_dump(by_alias=True, exclude_none=True),
        "securityContext": container_security(read_only=user_image(spec) is None),
        "terminationMessagePolicy": LAST_LINES,
        "volumeMounts": [*main["volumeMounts"], {"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = pod_spec(job, settings)
    pod["volumes"] = [*pod["volumes"], {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    return {
        **pod,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": spec.checkpoint.termination_grace_seconds,
        "topologySpreadConstraints": [_apart(job)],
        "containers": [container],
    }


def _apart(job: Job) -> Object:
    """Workers prefer different nodes, so that the loss of one node costs one worker.

    Affinity between pods would say the same: for each pod, the scheduler would compare it with all
    pods of the cluster that have any.
    """
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.labels(job.name, names.WORKER)},
    }


def ranks_per_worker(spec: TrainingJobSpec) -> int:
    """nprocPerNode. `auto` takes it from the limit of GPUs, in `resources` or in the template.
    Raises TemplateError when that limit is not a whole number.
    """
    if spec.nproc_per_node != "auto":
        return spec.nproc_per_node
    given = spec.resources.model_dump(by_alias=True, exclude_none=True)
    merged = strategic_merge(given, main_container(spec.template).get("resources") or {})
    limits = merged.get("limits")
    limit = limits.get(GPU, 0) if isinstance(limits, dict) else 0
    if not str(limit).isdecimal():
        raise TemplateError(
            f"the limit {GPU}={limit!r} must be a whole number: ranks are counted by it"
        )
    return int(limit) or 1


def avoiding(pod: Object, excluded: Iterable[str]) -> Object:
    """The pod with these nodes excluded in every term of its node affinity, because terms are
    alternatives.
    """
    excluded = sorted(set(excluded))
    if not excluded:
        return pod
    requirements = [
        {"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in excluded
    ]
    spec = pod["spec"]
    affinity = dict(spec.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    required = dict(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), *requirements]} for term in terms
    ]
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = required
    affinity["nodeAffinity"] = node_affinity
    annotations = {
        **pod["metadata"].get("annotations", {}),
        names.EXCLUDED_NODES: ",".join(excluded),
    }
    return {
        **pod,
        "metadata": {**pod["metadata"], "annotations": annotations},
        "spec": {**spec, "affinity": affinity},
    }
