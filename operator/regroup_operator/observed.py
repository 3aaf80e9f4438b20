"""What the operator has seen, as immutable values: the planner's whole view of the world.

The functions here read Kubernetes objects (plain dicts) into them. Nothing here decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from regroup_operator import names
from regroup_operator.api import InvalidSpecError, TrainingJobSpec, TrainingJobStatus, parse_spec
from regroup_operator.errors import TemplateError
from regroup_operator.merge import check_template
from regroup_operator.support import unsupported
from regroup_trainer.job_status import CoordinatorStatus

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Blocker:
    """Why no pod is made."""

    reason: str
    """For the condition Ready."""
    message: str


@dataclass(frozen=True)
class Job:
    """A TrainingJob."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    deleting: bool
    suspend: bool
    """Read from the raw spec, so that it is known while the spec is invalid."""
    spec: TrainingJobSpec | None
    """None while the spec is invalid."""
    blocker: Blocker | None
    """What is wrong with the spec."""
    status: TrainingJobStatus
    launcher: str = "regroup"
    """Read from the raw spec, as `suspend` is."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True)
class Pod:
    """A pod of the job."""

    name: str
    uid: str
    role: str
    index: int
    term: int
    phase: str
    terminating: bool = False
    node: str = ""
    ip: str = ""
    ready: bool = False
    reason: str = ""
    """Of the pod: Evicted, NodeLost, ..."""
    message: str = ""
    true_conditions: frozenset[str] = frozenset()
    unschedulable: str = ""
    """What the scheduler says about a pod that it cannot place."""
    waiting_reason: str = ""
    """Why the main container does not run yet."""
    waiting_message: str = ""
    exit_code: int | None = None
    """Of the main container's last end."""
    ended: str = ""
    """When that was, by its node's clock."""
    exit_reason: str = ""
    exit_message: str = ""
    image: str = ""
    claims: tuple[str, ...] = ()
    only_shared_volumes: bool = True
    """Whether it has no volumes but claims, ephemeral ones and configuration."""
    excluded_nodes: tuple[str, ...] = ()
    """The nodes that its affinity excludes."""
    nnodes: str = ""
    """The bounds that torchrun was started with."""

    @property
    def alive(self) -> bool:
        """Whether it may still run."""
        return self.phase in ("Pending", "Running", "Unknown") and not self.terminating


@dataclass(frozen=True)
class Node:
    """A node that was looked at since something pointed to it."""

    name: str
    exists: bool = True
    ready: bool = True
    not_ready_seconds: float = 0.0
    """Since this operator first saw it not Ready."""
    out_of_service: bool = False
    """Whether it has the taint that says it is shut down."""
    lease_renewed: bool = False
    """Whether its lease changed since this operator began to watch it."""
    lease_unchanged_seconds: float = 0.0
    """By this operator's clock."""


LEASE_STALE_SECONDS = 15.0
"""Kubelets renew every 10 s."""


@dataclass(frozen=True)
class Claim:
    """The PersistentVolumeClaim that holds the checkpoints."""

    name: str
    access_modes: tuple[str, ...] = ("ReadWriteMany",)
    deleting: bool = False


@dataclass(frozen=True)
class Service:
    """The Service in front of the coordinator."""

    term: int
    """That its selector names."""
    address: str
    """Cluster IP."""


@dataclass(frozen=True)
class CoordinatorView:
    """What the coordinator of the current term last said."""

    status: CoordinatorStatus | None = None
    failures: int = 0
    """Probes in a row without an answer."""
    answering_seconds: float = 0.0
    """Since its first answer."""
    lost_seconds: Mapping[str, float] = field(default_factory=dict)
    """UID of a member that it calls lost -> for how long it has done so."""
    error: str = ""
    """Why the last probe failed."""


@dataclass(frozen=True)
class Observed:
    """All that the planner may look at."""

    pods: tuple[Pod, ...] = ()
    service: Service | None = None
    network_policy: bool = False
    disruption_budget: int | None = None
    """Workers that the PodDisruptionBudget keeps from eviction; None: there is none."""
    claim: Claim | None = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    coordinator: CoordinatorView = CoordinatorView()
    images: Mapping[str, str] = field(default_factory=dict)
    """What `trainer` and `coordinator` would run now."""
    apply_error: str = ""
    """What the API server said when the last plan was carried out; empty when all went well."""

    @property
    def workers(self) -> tuple[Pod, ...]:
        """Worker pods, by index."""
        return tuple(
            sorted((pod for pod in self.pods if pod.role == names.WORKER), key=lambda pod: (pod.index, pod.name))
        )

    @property
    def coordinators(self) -> tuple[Pod, ...]:
        """Coordinator pods of all terms."""
        return tuple(pod for pod in self.pods if pod.role == names.COORDINATOR)

    @property
    def stores(self) -> tuple[Pod, ...]:
        """Store pods of all attempts of launcher torchrun."""
        return tuple(pod for pod in self.pods if pod.role == names.STORE)


# --- reading objects -------------------------------------------------------------------------------------------------


def read_job(document: Object) -> Job:
    """Read a TrainingJob; a spec that is wrong or asks for what is not supported becomes a blocker."""
    metadata, raw = document["metadata"], document.get("spec", {})
    spec, blocker = _read_spec(raw)
    return Job(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        resource_version=metadata["resourceVersion"],
        deleting="deletionTimestamp" in metadata,
        suspend=raw.get("suspend") is True,
        spec=spec,
        blocker=blocker,
        status=TrainingJobStatus.model_validate(document.get("status") or {}),
        launcher="torchrun" if raw.get("launcher") == "torchrun" else "regroup",
    )


def _read_spec(raw: Object) -> tuple[TrainingJobSpec | None, Blocker | None]:
    try:
        spec = parse_spec(raw)
        check_template(spec.template or {})
    except (InvalidSpecError, TemplateError) as error:
        return None, Blocker("InvalidSpec", str(error))
    refused = unsupported(spec)
    return (None, Blocker("NotSupported", "; ".join(refused))) if refused else (spec, None)


def read_pod(document: Object) -> Pod:
    """Read a pod that carries our labels."""
    metadata, spec, status = document["metadata"], document["spec"], document.get("status", {})
    label = metadata.get("labels", {})
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {})
    main = _main_status(status, label.get(names.ROLE, ""))
    state = main.get("state", {})
    ended = state.get("terminated") or main.get("lastState", {}).get("terminated") or {}
    annotations = metadata.get("annotations", {})
    volumes = spec.get("volumes", [])
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=label.get(names.ROLE, ""),
        index=int(label.get(names.INDEX, "-1")),
        term=int(label.get(names.TERM, "-1")),
        phase=status.get("phase", "Pending"),
        terminating="deletionTimestamp" in metadata,
        node=spec.get("nodeName", ""),
        ip=status.get("podIP", ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        true_conditions=frozenset(kind for kind, c in conditions.items() if c.get("status") == "True"),
        unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
        waiting_reason=state.get("waiting", {}).get("reason", ""),
        waiting_message=state.get("waiting", {}).get("message", ""),
        exit_code=ended.get("exitCode"),
        ended=ended.get("finishedAt") or "",
        exit_reason=ended.get("reason", ""),
        exit_message=ended.get("message", ""),
        image=spec["containers"][0].get("image", ""),
        claims=tuple(v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v),
        only_shared_volumes=all(_is_shared(volume) for volume in volumes),
        excluded_nodes=tuple(filter(None, annotations.get(names.EXCLUDED_NODES, "").split(","))),
        nnodes=annotations.get(names.NNODES, ""),
    )


_SHARED_VOLUMES = ("persistentVolumeClaim", "emptyDir", "secret", "configMap", "downwardAPI", "projected")


def _is_shared(volume: Object) -> bool:
    return any(kind in volume for kind in _SHARED_VOLUMES)


def _main_status(status: Object, role: str) -> Object:
    name = names.MAIN_CONTAINER if role == names.WORKER else role
    return next((c for c in status.get("containerStatuses", []) if c["name"] == name), {})


def read_claim(document: Object) -> Claim:
    """Read a PersistentVolumeClaim."""
    return Claim(
        name=document["metadata"]["name"],
        access_modes=tuple(document["spec"].get("accessModes", ())),
        deleting="deletionTimestamp" in document["metadata"],
    )


def read_service(document: Object) -> Service:
    """Read our Service."""
    spec = document["spec"]
    return Service(term=int(spec.get("selector", {}).get(names.TERM, "-1")), address=spec.get("clusterIP", ""))


def read_disruption_budget(document: Object) -> int | None:
    """How many pods our PodDisruptionBudget keeps; None when somebody wrote something else into it."""
    fewest = document["spec"].get("minAvailable")
    return fewest if isinstance(fewest, int) else None


def read_ready(document: Object) -> bool:
    """Whether a node is Ready."""
    conditions = document.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def is_out_of_service(document: Object) -> bool:
    """Whether a node has the taint of a node that is shut down."""
    taints = document.get("spec", {}).get("taints", [])
    return any(taint["key"] == "node.kubernetes.io/out-of-service" for taint in taints)


def parse_time(text: str) -> datetime:
    """A Kubernetes timestamp."""
    return datetime.fromisoformat(text)


def format_time(time: datetime) -> str:
    """The inverse, in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
