"""Renders the pods of launcher torchrun: stock agents in any image with torch, and the store where
they meet. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from regroup_operator.api import names
from regroup_operator.api.resource import Object
from regroup_operator.api.settings import Settings
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.user_script import COMMAND_FIELD, Script, user_script
from regroup_operator.observe.observed import Job
from regroup_operator.render.pods import (
    LAST_LINES,
    avoiding,
    container_security,
    directory,
    environment,
    metadata,
    mounts,
    pod_spec,
    ranks_per_worker,
    set_variables,
    trainer_image,
    worker,
)
from regroup_operator.render.torchrun_commands import (
    STORE_PORT,
    Rendezvous,
    agent_command,
    agent_variables,
    nnodes,
    store_command,
)
from regroup_trainer.protocol.environment import DIRECTORY_VARIABLE

STORE_RESOURCES = {"requests": {"cpu": "20m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
"""Resources of the store, which imports torch and then only serves a few keys."""
_POD_ADDRESS = "POD_IP"
_FOLLOWED = ("imagePullSecrets", "nodeSelector", "tolerations")
"""Fields of the template that also apply to the store: it runs the same image on the same nodes."""


def store_pod(job: Job, settings: Settings, term: int, excluded: Iterable[str]) -> Object:
    """The store of an attempt. It is never restarted: a store without its keys begins another
    attempt.
    """
    spec = job.spec
    container = {
        "name": names.STORE,
        "image": trainer_image(job, settings),
        "imagePullPolicy": settings.image_pull_policy,
        "command": store_command(_script(spec).interpreter, _identity(job, term)),
        "env": environment({}, {}),
        "ports": [{"name": "store", "containerPort": STORE_PORT}],
        "readinessProbe": {"tcpSocket": {"port": STORE_PORT}, "periodSeconds": 1},
        "resources": STORE_RESOURCES,
        "securityContext": container_security(read_only=True),
        "terminationMessagePolicy": LAST_LINES,
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
    }
    template = (spec.template or {}).get("spec") or {}
    pod = {
        **pod_spec(job, settings),
        **{field: template[field] for field in _FOLLOWED if field in template},
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
    }
    described = metadata(
        job, names.store(job.name, term), names.labels(job.name, names.STORE, term=term)
    )
    return avoiding(
        {"apiVersion": "v1", "kind": "Pod", "metadata": described, "spec": pod}, excluded
    )


def agent_pod(
    job: Job, settings: Settings, place: tuple[int, int], address: str, excluded: Iterable[str]
) -> Object:
    """A worker of the current attempt: `place` is its index and incarnation, `address` the
    Service's IP.
    """
    spec, term = job.spec, job.status.coordinator_term
    script = _script(spec)
    variables = {**agent_variables(script), DIRECTORY_VARIABLE: directory(job)}
    meeting = Rendezvous(
        endpoint=f"[{address}]:{STORE_PORT}" if ":" in address else f"{address}:{STORE_PORT}",
        identity=_identity(job, term),
        nnodes=nnodes(spec),
        ranks=ranks_per_worker(spec),
        max_restarts=spec.restart_policy.max_restarts,
        address=f"$({_POD_ADDRESS})",
    )
    main = {
        "command": agent_command(script, meeting),
        "env": environment(variables, {_POD_ADDRESS: "status.podIP"}),
        "volumeMounts": mounts(job),
    }
    pod = worker(job, settings, place, main)
    set_variables(pod, script.variables)
    pod["metadata"]["labels"][names.TERM] = str(term)
    pod["metadata"]["annotations"][names.NNODES] = meeting.nnodes
    return avoiding(pod, excluded)


def _identity(job: Job, term: int) -> str:
    return f"{names.short(job.uid)}-{term}"


def _script(spec: TrainingJobSpec) -> Script:
    script = user_script(spec.template)
    if script is None:
        raise ValueError(f"{COMMAND_FIELD}: is missing")
    return script
