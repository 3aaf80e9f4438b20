"""Reads Kubernetes objects (plain dicts) into the values of `observed`. Pure; it decides
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import fields
from datetime import datetime
from functools import lru_cache
from urllib.parse import urlsplit

from regroup_operator.api import names
from regroup_operator.api.resource import Object
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.spec_reader import InvalidSpecError, parse_spec
from regroup_operator.api.status import REQUEST_LIMIT
from regroup_operator.api.support import unsupported
from regroup_operator.api.template_check import check_template
from regroup_operator.api.timestamps import parse_time
from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS, too_large
from regroup_operator.errors import TemplateError
from regroup_operator.observe.observed import (
    AnyJob,
    Claim,
    Identity,
    InvalidJob,
    Job,
    JobObject,
    NodeState,
    Pod,
    Service,
)
from regroup_operator.observe.stored_status import read_status
from regroup_trainer.protocol.environment import AgentEnvironment
from regroup_trainer.protocol.job_status import Waiting
from regroup_trainer.protocol.message import printable
from regroup_trainer.protocol.waiting_reasons import WaitingReason


def read_job(document: Object, now: datetime, max_workers: int = DEFAULT_MAX_WORKERS) -> AnyJob:
    """The TrainingJob. An InvalidJob when the spec is wrong, asks for what is not supported, or for
    more workers than `max_workers`.
    """
    metadata, raw = document["metadata"], document.get("spec", {})
    status, unreadable = read_status(document.get("status"), now)
    job = JobObject(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        deleting="deletionTimestamp" in metadata,
        suspend=raw.get("suspend") is True,
        launcher="torchrun" if raw.get("launcher") == "torchrun" else "regroup",
        status=status,
        checkpoint_request=_request(metadata, names.CHECKPOINT_NOW),
        restart_request=_request(metadata, names.RESTART),
        python=_python(metadata),
        unreadable_status=unreadable,
    )
    shared = {field.name: getattr(job, field.name) for field in fields(job)}
    spec = _read_spec(raw, max_workers, started=status.start_time is not None)
    if isinstance(spec, Waiting):
        return InvalidJob(**shared, problem=spec)
    return Job(**shared, spec=spec)


def _request(metadata: Object, annotation: str) -> str:
    """The value of an annotation that asks for something. One that a status cannot hold is none: a
    part of it may ask for something else.
    """
    value = str((metadata.get("annotations") or {}).get(annotation, ""))
    return value if len(value) <= REQUEST_LIMIT else ""


def _python(metadata: Object) -> str:
    """The annotation's minor version. Anything else asks for nothing."""
    value = str((metadata.get("annotations") or {}).get(names.PYTHON, ""))
    return value if names.MINOR_VERSION.fullmatch(value) else ""


def _read_spec(raw: Object, max_workers: int, *, started: bool) -> TrainingJobSpec | Waiting:
    try:
        spec = parse_spec(raw)
        check_template(spec.template or {})
    except (InvalidSpecError, TemplateError) as error:
        return Waiting.of(WaitingReason.InvalidSpec, str(error))
    if problem := too_large(spec, max_workers, started=started):
        return Waiting.of(WaitingReason.InvalidSpec, problem)
    refused = unsupported(spec)
    return Waiting.of(WaitingReason.NotSupported, "; ".join(refused)) if refused else spec


def read_pod(document: Object) -> Pod:
    """Read a pod of the job. It has no role when its labels or its name cannot be read: somebody
    has edited or copied it.
    """
    metadata, spec, status = document["metadata"], document["spec"], document.get("status", {})
    role, index, term = _read_place(metadata["name"], metadata.get("labels", {}))
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {})
    main = _main_of(status.get("containerStatuses", []), role)
    waiting_container, waiting = _waiting(status, main, role)
    ended_container, ended = _end(status, main, _sidecars(spec), waiting_container)
    annotations = metadata.get("annotations", {})
    volumes = spec.get("volumes", [])
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=role,
        index=index,
        term=term,
        phase=status.get("phase", "Pending"),
        terminating="deletionTimestamp" in metadata,
        is_forced=metadata.get("deletionGracePeriodSeconds") == 0,
        node=spec.get("nodeName", ""),
        ip=status.get("podIP", ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        true_conditions=_shared(
            frozenset(kind for kind, c in conditions.items() if c.get("status") == "True")
        ),
        unschedulable=_unschedulable(scheduled),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=printable(waiting.get("message", "")),
        waiting_container=waiting_container,
        exit_code=ended.get("exitCode"),
        ended=_time(ended.get("finishedAt")),
        exit_reason=ended.get("reason", ""),
        exit_message=ended.get("message", ""),
        ended_container=ended_container,
        image=_main_of(spec["containers"], role).get("image", "")[:_LONGEST_IMAGE],
        image_id=main.get("imageID", "")[:_LONGEST_IMAGE],
        claims=_claims(volumes),
        only_shared_volumes=all(_is_shared(volume) for volume in volumes),
        excluded_nodes=_excluded_nodes(annotations.get(names.EXCLUDED_NODES, "")),
        nnodes=annotations.get(names.NNODES, "")[:_LONGEST_NNODES],
        coordinator_address=_coordinator_address(_main_of(spec["containers"], role)),
        placed=_time(scheduled.get("lastTransitionTime")) if spec.get("nodeName") else "",
        began=_time(main.get("state", {}).get("running", {}).get("startedAt")),
    )


def _shared(conditions: frozenset[str]) -> frozenset[str]:
    """The same ones, in the memory of those of another pod where there are no more than usual."""
    return _known(conditions) if len(conditions) <= _USUAL_CONDITIONS else conditions


@lru_cache(maxsize=64)
def _known(conditions: frozenset[str]) -> frozenset[str]:
    return conditions


_USUAL_CONDITIONS = 8
"""A set of five takes 700 bytes, a quarter of what is kept of a pod."""
_MOST_NODES = 512
"""As many as the status holds, suspected and excluded. More are not ours: a hundred pods with an
annotation of 256 kB of commas would fill the memory.
"""
_LONGEST_NNODES = 32
_LONGEST_IMAGE = 4096
"""Characters."""


def _claims(volumes: list[Object]) -> tuple[str, ...]:
    found = [one["persistentVolumeClaim"] for one in volumes if "persistentVolumeClaim" in one]
    return tuple(one["claimName"] for one in found)


def _time(text: str | None) -> str:
    """A time in a pod's status; empty for one that nothing can be computed with. Kubernetes takes
    any year, and some tenants may write the status of their pods.
    """
    text = text or ""
    try:
        parse_time(text)
    except ValueError:
        return ""
    return text


def _excluded_nodes(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",", _MOST_NODES)[:_MOST_NODES]))


_LARGEST = 2**31 - 1
"""The largest number that the status can hold."""


def _read_place(name: str, labels: Mapping[str, str]) -> tuple[str, int, int]:
    """Role, index and term; -1 for what the role does without, no role if one is unreadable."""
    role = labels.get(names.ROLE, "")
    numbers = [_read_number(labels.get(label, "-1")) for label in (names.INDEX, names.TERM)]
    if role == names.WORKER:
        numbers += [_read_number(name.rsplit("-", 1)[-1])]  # its incarnation
    index, term = (-1 if number is None else number for number in numbers[:2])
    is_readable = None not in numbers and (index >= 0 or role != names.WORKER)
    return role if is_readable else "", index, term


def _read_number(text: str) -> int | None:
    """The number in a label or a name; None when it is none that we write."""
    is_number = text == "-1" or (text.isdecimal() and int(text) <= _LARGEST)
    return int(text) if is_number else None


_COORDINATOR_URL = AgentEnvironment.variable("coordinator_url")


def _coordinator_address(container: Object) -> str:
    """The host in the variable with the address of the coordinator; empty without one."""
    values = {entry["name"]: entry.get("value", "") for entry in container.get("env") or ()}
    try:
        return urlsplit(values.get(_COORDINATOR_URL, "")).hostname or ""
    except ValueError:
        return ""


_SHARED_VOLUMES = (
    "persistentVolumeClaim",
    "emptyDir",
    "secret",
    "configMap",
    "downwardAPI",
    "projected",
)


def _is_shared(volume: Object) -> bool:
    return any(kind in volume for kind in _SHARED_VOLUMES)


def _main_of(containers: list[Object], role: str) -> Object:
    """The main one of these containers, or of these states of containers."""
    name = names.MAIN_CONTAINER if role == names.WORKER else role
    return next((c for c in containers if c["name"] == name), {})


def _unschedulable(scheduled: Object) -> str:
    """The words of the scheduler that cannot place a pod."""
    is_it = scheduled.get("reason") == "Unschedulable"
    return printable(scheduled.get("message", "")) if is_it else ""


_PASSING = ("", "ContainerCreating", "PodInitializing")
"""Reasons of a container that waits for others."""


def _waiting(status: Object, main: Object, role: str) -> tuple[str, Object]:
    """Which container waits, and why; no name for the main one. Of a worker, that is the first
    which cannot start, or else the first that ends again and again: its init containers and
    sidecars are the template's, and the agent's.
    """
    for passing in ((*_PASSING, names.CRASH_LOOP), _PASSING):
        for container in (main, *_states(status)) if role == names.WORKER else ():
            waiting = container.get("state", {}).get("waiting", {})
            if waiting.get("reason", "") not in passing:
                return "" if container is main else container["name"], waiting
    return "", main.get("state", {}).get("waiting", {})


def _states(status: Object) -> list[Object]:
    """The states of all containers, in the order in which they start."""
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def _sidecars(spec: Object) -> frozenset[str]:
    """The init containers that run beside the main one."""
    before = spec.get("initContainers") or ()
    return frozenset(c["name"] for c in before if c.get("restartPolicy") == "Always")


def _end(status: Object, main: Object, sidecars: Set[str], waiting: str) -> tuple[str, Object]:
    """The last end of the main container, without a name. Of a pod where that has not run: of the
    init container that made it fail, which makes the kubelet end the sidecars; or else of the
    container `waiting` to be started again.
    """
    for moment in ("state", "lastState"):
        if terminated := main.get(moment, {}).get("terminated"):
            return "", terminated
    for container in status.get("initContainerStatuses", []):
        terminated = container.get("state", {}).get("terminated", {})
        is_last = status.get("phase") == "Failed" and container["name"] not in sidecars
        if is_last and terminated.get("exitCode"):
            return container["name"], terminated
    waits = next((c for c in _states(status) if c["name"] == waiting), {})
    terminated = waits.get("lastState", {}).get("terminated")
    return (waiting, terminated) if terminated else ("", {})


def read_claim(document: Object) -> Claim:
    """Read a PersistentVolumeClaim."""
    return Claim(
        name=document["metadata"]["name"],
        access_modes=tuple(document["spec"].get("accessModes", ())),
        deleting="deletionTimestamp" in document["metadata"],
    )


def read_identity(document: Object) -> Identity:
    """Which object this is, in which state."""
    metadata = document["metadata"]
    return Identity(metadata["uid"], metadata["resourceVersion"])


def read_service(document: Object) -> Service:
    """Read our Service. Its term is -1 when its selector cannot be read."""
    spec = document["spec"]
    term = _read_number(spec.get("selector", {}).get(names.TERM, "-1"))
    return Service(
        term=-1 if term is None else term,
        address=spec.get("clusterIP", ""),
        created=document.get("metadata", {}).get("creationTimestamp") or "",
    )


def read_disruption_budget(document: Object) -> int | None:
    """How many pods our PodDisruptionBudget protects; None when it was changed to something
    else.
    """
    fewest = document["spec"].get("minAvailable")
    return fewest if isinstance(fewest, int) else None


_MOUNT_REASONS = ("FailedMount", "FailedAttachVolume")


def read_mount_failure(events: Sequence[Object]) -> str:
    """Why a volume of a pod cannot be mounted, of all the events of that pod; empty when something
    newer has happened to it.
    """
    return _newest_message(events, _MOUNT_REASONS)


def read_pull(events: Sequence[Object]) -> str:
    """What the kubelet pulls for a pod, in its own words, of all the events of that pod; empty when
    something newer has happened to it.
    """
    return _newest_message(events, ("Pulling",))


def _newest_message(events: Sequence[Object], reasons: Collection[str]) -> str:
    newest = max(events, key=_age_of, default={})
    return newest.get("message") or "" if newest.get("reason") in reasons else ""


def _age_of(event: Object) -> tuple[str, bool]:
    """What is greater for a newer event. Times have seconds: a mount comes before what follows."""
    time = event.get("lastTimestamp") or event.get("eventTime") or ""
    return time, event.get("reason") not in _MOUNT_REASONS


def read_node(document: Object) -> NodeState:
    """Whether a node is Ready, and whether an administrator has declared it dead."""
    conditions = document.get("status", {}).get("conditions", [])
    taints = document.get("spec", {}).get("taints", [])
    return NodeState(
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in conditions),
        out_of_service=any(t["key"] == "node.kubernetes.io/out-of-service" for t in taints),
    )
