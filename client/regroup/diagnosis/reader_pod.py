"""The pod that reads a job's checkpoints or its series for its user: the workers' image, the volume
read-only, no rights and little else. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from regroup.kubernetes.cluster_errors import ClusterError
from regroup.local.checkpoint_list import MODULE
from regroup_operator.api.names import DOMAIN, JOB, MAIN_CONTAINER
from regroup_operator.api.resource import API_VERSION, KIND, Object
from regroup_operator.api.user_script import main_container, user_script
from regroup_operator.observe.kubernetes_objects import read_job
from regroup_operator.observe.observed import InvalidJob, Job
from regroup_operator.render.injection import agent_command, inject
from regroup_operator.render.pods import (
    SECURITY,
    claim_name,
    container_security,
    directory,
    environment,
    user_image,
    volume_mount,
)
from regroup_trainer.protocol.job_status import SERIES_FILE

READER = f"{DOMAIN}/reader"
"""Label: the job that is read. The pod has none of the labels by which a job's pods are found."""
LIFE_SECONDS = 3600
"""After which it ends by itself, should nobody delete it."""
_RESOURCES = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}}
_PULL_POLICY = "IfNotPresent"
_PRINT = "import pathlib, sys; print(pathlib.Path(sys.argv[1]).read_text())"
_PLACED = ("nodeSelector", "tolerations")
"""Fields of the job's template that also hold for the reader: it runs on the same nodes."""
_USERS = ("runAsUser", "runAsGroup", "fsGroup")
"""Who may read the files is who has written them. Root's can be read by others."""


class UnreadableJobError(ClusterError):
    """A job that no pod can read. The message says why, and what to do."""


@dataclass(frozen=True)
class Reader:
    """A pod that sleeps, and the command in it that writes what is read."""

    body: Object
    command: tuple[str, ...]
    claim: str


def reader_of(
    document: Object, pods: Iterable[Object], words: Sequence[str], number: str, now: datetime
) -> Reader:
    """The reader of a job, which may have pods that run. `words` are those behind `regroup
    checkpoint`, without the folder; `number` makes its name unique. Raises UnreadableJobError.
    """
    job, claim = _readable(document, now)
    if job.status.checkpoint.last_step is None:
        raise UnreadableJobError(f"job {job.name} has no checkpoint yet: wait for one")
    verb, *options = words
    command = (*_command(job), MODULE, verb, directory(job), *options)
    return Reader(_body(job, claim, pods, number), command, claim)


def with_step(words: Sequence[str], step: int | None) -> list[str]:
    """The words of a command that reads one checkpoint; None: the command chooses."""
    return [*words, *(["--step", str(step)] if step is not None else [])]


def series_reader_of(
    document: Object, pods: Iterable[Object], number: str, now: datetime
) -> Reader:
    """As `reader_of`, with the command that writes what the job's last coordinator has kept of its
    course.
    """
    job, claim = _readable(document, now)
    command = (_command(job)[0], "-c", _PRINT, f"{directory(job)}/{SERIES_FILE}")
    return Reader(_body(job, claim, pods, number), command, claim)


def _readable(document: Object, now: datetime) -> tuple[Job, str]:
    """The job, and the claim that it writes to. Raises UnreadableJobError."""
    job = read_job(document, now)
    if isinstance(job, InvalidJob):
        raise _unreadable(job.name, f"its spec is invalid: {job.problem.message}")
    claim = claim_name(job)
    if claim is None:
        raise _unreadable(job.name, "its checkpoints lie in its pods: give train() a claim")
    if job.spec.uses_torchrun:
        raise _unreadable(job.name, "launcher torchrun: its script saves in its own form")
    return job, claim


def _unreadable(job: str, why: str) -> UnreadableJobError:
    return UnreadableJobError(f"job {job} cannot be read: {why}")


def _command(job: Job) -> list[str]:
    """The words before the module, as in a worker."""
    script = user_script(job.spec.template)
    interpreter = script.interpreter if script else "python"
    return agent_command(interpreter, injected=user_image(job.spec) is not None)[:-1]


def _body(job: Job, claim: str, pods: Iterable[Object], number: str) -> Object:
    images = job.status.images or job.status.last_images
    template = (job.spec.template or {}).get("spec") or {}
    pod: Object = {
        "metadata": {
            "name": f"{job.name}-reader-{number}",
            "labels": {READER: job.name},
            "ownerReferences": [_owner(job)],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIFE_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {**SECURITY, **_users(job, template)},
            "affinity": _beside(job),
            "containers": [_container(job, _image(job, images, "trainer"))],
            "volumes": [
                {"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim}},
                {"name": "scratch", "emptyDir": {}},
            ],
            **{field: template[field] for field in _PLACED if field in template},
            **_pull_secrets(template, pods),
        },
    }
    if user_image(job.spec) is not None:
        inject(pod, _image(job, images, "coordinator"), _PULL_POLICY)
    return pod


def _owner(job: Job) -> Object:
    """So that the pod goes with the job. It does not control the pod, and does not wait for it."""
    return {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid}


def _image(job: Job, images: dict[str, str], role: str) -> str:
    if image := images.get(role) or (user_image(job.spec) if role == "trainer" else None):
        return image
    raise _unreadable(
        job.name, "it is not known which images it ran: it has not started yet, or resume it once"
    )


def _container(job: Job, image: str) -> Object:
    interpreter = _command(job)[0]
    scratch = {"name": "scratch", "mountPath": "/tmp"}
    return {
        "name": MAIN_CONTAINER,
        "image": image,
        "imagePullPolicy": _PULL_POLICY,
        "command": [interpreter, "-c", f"import time; time.sleep({LIFE_SECONDS})"],
        "env": environment({}, {}),
        "resources": _RESOURCES,
        "securityContext": container_security(read_only=True),
        "volumeMounts": [{**volume_mount(job), "readOnly": True}, scratch],
    }


def _users(job: Job, template: Object) -> dict[str, Any]:
    """The users that the template names, but root."""
    main = main_container(job.spec.template).get("securityContext") or {}
    given = {**(template.get("securityContext") or {}), **main}
    return {field: given[field] for field in _USERS if given.get(field)}


def _beside(job: Job) -> Object:
    """Rather on a node of the job: a volume may be attached to one node alone."""
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {JOB: job.name}},
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _pull_secrets(template: Object, pods: Iterable[Object]) -> Object:
    """Those of the template or of a pod of the job, which has those of the installation."""
    specs = [template, *((pod.get("spec") or {}) for pod in pods)]
    found = next((spec["imagePullSecrets"] for spec in specs if spec.get("imagePullSecrets")), None)
    return {"imagePullSecrets": found} if found else {}
