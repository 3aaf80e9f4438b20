"""Pods, nodes and quotas as values: what somebody who looks for a fault wants to know. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from regroup.kubernetes.job_record import time_of
from regroup_operator.api.names import INDEX, MAIN_CONTAINER, ROLE, WORKER
from regroup_operator.api.resource import Object

PULL_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")


@dataclass(frozen=True)
class ContainerEnd:
    """The last end of a container, as the kubelet reports it."""

    exit_code: int
    reason: str
    """OOMKilled, Error, Completed ..."""
    message: str
    time: datetime | None
    before_restart: bool
    """Whether the container has been started again since."""

    @property
    def last_line_suffix(self) -> str:
        """A colon and what it wrote last; empty where the kubelet keeps nothing."""
        lines = self.message.strip().splitlines()
        return f": {lines[-1].strip()}" if lines else ""


@dataclass(frozen=True)
class PodRecord:
    """What verbs show of a pod. Fields that cannot be read have defaults."""

    name: str
    uid: str
    role: str
    """worker, coordinator or store."""
    index: int | None
    """Of a worker."""
    phase: str
    node: str
    created: datetime | None
    deleting: bool
    ready: bool
    container: str
    """Its main container."""
    command: tuple[str, ...]
    """Of that container."""
    unschedulable: str
    """What the scheduler says; empty when the pod has a node."""
    waiting_reason: str
    """Why a container does not run: ImagePullBackOff, CrashLoopBackOff ..."""
    waiting_message: str
    waiting_container: str
    """Which one that is; empty: the main one."""
    waiting_end: ContainerEnd | None
    """How that one ended last."""
    end: ContainerEnd | None
    """How its main container ended last."""

    @property
    def failed(self) -> bool:
        """Whether a container of it ended with an error."""
        return self.phase == "Failed" or (self.end is not None and self.end.exit_code != 0)


@dataclass(frozen=True)
class NodeRecord:
    """A node on which a job has pods, or had."""

    name: str
    problems: tuple[str, ...]
    """Why new pods do not run there: NotReady, cordoned, DiskPressure ..."""


@dataclass(frozen=True)
class QuotaRecord:
    """A quota of the namespace."""

    name: str
    used_up: tuple[str, ...]
    """What it allows no more of, as `pods 10 of 10`."""


def read_pods(documents: Iterable[Object]) -> list[PodRecord]:
    """The pods of a job: coordinator first, then the workers in order."""
    pods = [_read_pod(document) for document in documents]
    return sorted(pods, key=lambda pod: (pod.role == WORKER, pod.index or 0, pod.name))


def newest_running(pods: Iterable[PodRecord], role: str) -> PodRecord | None:
    """The newest of a job's pods of that role that run."""
    running = (p for p in pods if (p.role, p.phase) == (role, "Running") and not p.deleting)
    return max(running, key=lambda pod: (len(pod.name), pod.name), default=None)  # c10 after c9


def _read_pod(document: Object) -> PodRecord:
    metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    status, labels = document.get("status") or {}, metadata.get("labels") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    states = (*(status.get("initContainerStatuses") or ()), *_statuses(status))
    waits: Object = next((s for s in states if _state(s, "waiting")), {})
    waiting = _state(waits, "waiting")
    index, main = str(labels.get(INDEX, "")), _main_container(spec)
    container = str(main.get("name") or MAIN_CONTAINER)
    return PodRecord(
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        role=str(labels.get(ROLE, "")),
        index=int(index) if index.isdecimal() else None,
        phase=str(status.get("phase") or "Unknown"),
        node=str(spec.get("nodeName") or ""),
        created=time_of(metadata.get("creationTimestamp")),
        deleting="deletionTimestamp" in metadata,
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        container=container,
        command=tuple(str(word) for word in main.get("command") or ()),
        unschedulable=_unschedulable(conditions.get("PodScheduled") or {}),
        waiting_reason=str(waiting.get("reason") or ""),
        waiting_message=str(waiting.get("message") or ""),
        waiting_container="" if waits.get("name") == container else str(waits.get("name") or ""),
        waiting_end=_end(waits),
        end=_end(_main_state(_statuses(status))),
    )


def _statuses(status: Object) -> list[Any]:
    return list(status.get("containerStatuses") or ())


def _state(container: Object, kind: str) -> dict[str, Any]:
    return (container.get("state") or {}).get(kind) or {}


def _main_container(spec: Object) -> Object:
    containers = list(spec.get("containers") or ({},))
    return next((c for c in containers if c.get("name") == MAIN_CONTAINER), containers[0])


def _unschedulable(condition: Object) -> str:
    if condition.get("status") != "False":
        return ""
    return str(condition.get("message") or condition.get("reason") or "no node was found")


def _main_state(containers: list[Any]) -> Object:
    main = next((c for c in containers if c.get("name") == MAIN_CONTAINER), None)
    return main or (containers[0] if containers else {})


def _end(container: Object) -> ContainerEnd | None:
    """The newest end of a container: of this one, or of the one before its restart."""
    now = _state(container, "terminated")
    ended = now or (container.get("lastState") or {}).get("terminated")
    if not ended:
        return None
    return ContainerEnd(
        exit_code=int(ended.get("exitCode") or 0),
        reason=str(ended.get("reason") or ""),
        message=str(ended.get("message") or ""),
        time=time_of(ended.get("finishedAt")),
        before_restart=not now,
    )


def read_node(document: Object) -> NodeRecord:
    """What keeps pods from a node, or puts those that it has at risk."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    problems = [_node_problem(c) for c in conditions]
    if (document.get("spec") or {}).get("unschedulable"):
        problems.append("it is cordoned")
    name = str((document.get("metadata") or {}).get("name", ""))
    return NodeRecord(name, tuple(filter(None, problems)))


def _node_problem(condition: Object) -> str:
    """A node shall be Ready, and have no pressure. Of one whose kubelet is away nothing else is
    known.
    """
    kind, status = str(condition.get("type")), condition.get("status")
    if status == "True" if kind == "Ready" else status != "True":
        return ""
    what = "it is not Ready" if kind == "Ready" else f"it has {kind}"
    message = str(condition.get("message") or "")
    return f"{what} ({message})" if message else what


def read_quota(document: Object) -> QuotaRecord:
    """Which of its limits a quota has reached."""
    status = document.get("status") or {}
    hard, used = status.get("hard") or {}, status.get("used") or {}
    full = [
        f"{what} {used[what]} of {limit}"
        for what, limit in hard.items()
        if what in used and amount(used[what]) >= amount(limit)
    ]
    return QuotaRecord(str((document.get("metadata") or {}).get("name", "")), tuple(full))


_SUFFIXES = {
    "m": 1e-3,
    **dict(zip("kMGTPE", (1e3, 1e6, 1e9, 1e12, 1e15, 1e18), strict=True)),
    **{f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", 1)},
}


def amount(quantity: object) -> float:
    """A quantity of Kubernetes as a number; 0 where it is none."""
    text = str(quantity)
    suffix = next((s for s in sorted(_SUFFIXES, key=len, reverse=True) if text.endswith(s)), "")
    try:
        return float(text.removesuffix(suffix)) * _SUFFIXES.get(suffix, 1.0)
    except ValueError:
        return 0.0
