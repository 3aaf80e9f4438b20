"""What the operator has observed, as immutable values: all that the planner may look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from regroup_operator.api import names
from regroup_operator.api.checkpoint_storage import CheckpointStorage
from regroup_operator.api.policies import NodeFailurePolicy, RestartPolicy
from regroup_operator.api.resource import Key
from regroup_operator.api.spec import Launcher, TrainingJobSpec
from regroup_operator.api.status import CHECKPOINT_REQUEST, RESTART_REQUEST, TrainingJobStatus
from regroup_trainer.protocol.desired import CoordinatorContact
from regroup_trainer.protocol.job_status import CoordinatorStatus, Waiting
from regroup_trainer.protocol.waiting_reasons import WaitingReason

_UNSET = TrainingJobSpec.model_construct()
"""Each field has its default."""


@dataclass(frozen=True)
class Policies:
    """The parts of a spec that decide about pods which exist already. The defaults hold while the
    spec cannot be read.
    """

    node_failure: NodeFailurePolicy = field(default_factory=NodeFailurePolicy)
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    clean_pods: Literal["Running", "All", "None"] = _UNSET.clean_pod_policy
    termination_grace_seconds: int = _UNSET.checkpoint.termination_grace_seconds
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None


@dataclass(frozen=True)
class JobSize:
    """How many workers a spec asks for: none while it cannot be read."""

    replicas: int = 0
    min_replicas: int = 0
    max_replicas: int = 0
    spares: int = 0


@dataclass(frozen=True)
class JobObject:
    """What is known of a TrainingJob whether its spec is valid or not."""

    namespace: str
    name: str
    uid: str
    generation: int
    """metadata.generation, which the API server raises with every change of the spec."""
    deleting: bool
    suspend: bool
    """Read from the raw spec, so that it is known while the spec is invalid."""
    launcher: Launcher
    """Read from the raw spec, as `suspend` is."""
    status: TrainingJobStatus
    checkpoint_request: str = ""
    """Value of the annotation that asks for a checkpoint; empty: there is none."""
    restart_request: str = ""
    """The same of a restart."""
    python: str = ""
    """The Python that its code needs, as 3.12; empty: any."""
    unreadable_status: tuple[str, ...] = ()
    """Paths of stored status fields that could not be read, such as `recoveries.0.time`."""

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    def open_request(self, name: str) -> str:
        """The request of that name, until its outcome is in the status; empty: there is none."""
        asked = {CHECKPOINT_REQUEST: self.checkpoint_request, RESTART_REQUEST: self.restart_request}
        known = self.status.request(name)
        if known is not None and known.outcome != "Pending" and known.value == asked[name]:
            return ""
        return asked[name]

    @property
    def policies(self) -> Policies:
        """What applies to the pods of the job."""
        return Policies()

    @property
    def size(self) -> JobSize:
        """How many workers it asks for."""
        return JobSize()

    @property
    def storage(self) -> CheckpointStorage | None:
        """Where its checkpoints lie; None where nothing is shared, or the spec cannot be read."""
        return None


@dataclass(frozen=True)
class InvalidJob(JobObject):
    """A TrainingJob whose spec is wrong or not supported: no pod is made, none is taken away."""

    problem: Waiting = field(kw_only=True)
    """What is wrong with the spec."""


@dataclass(frozen=True)
class Job(JobObject):
    """A TrainingJob with a valid spec."""

    spec: TrainingJobSpec = field(kw_only=True)

    @property
    def policies(self) -> Policies:
        """As the spec has them."""
        spec = self.spec
        return Policies(
            node_failure=spec.node_failure_policy,
            restart=spec.restart_policy,
            clean_pods=spec.clean_pod_policy,
            termination_grace_seconds=spec.checkpoint.termination_grace_seconds,
            active_deadline_seconds=spec.active_deadline_seconds,
            ttl_seconds_after_finished=spec.ttl_seconds_after_finished,
        )

    @property
    def size(self) -> JobSize:
        """As the spec has it."""
        spec = self.spec
        return JobSize(spec.replicas, spec.min_replicas, spec.max_replicas, spec.spares)

    @property
    def storage(self) -> CheckpointStorage | None:
        """As the spec has it."""
        return self.spec.checkpoint.storage


AnyJob = Job | InvalidJob


@dataclass(frozen=True, slots=True)
class Pod:
    """What decisions may look at of a pod that carries the labels of the job."""

    name: str
    uid: str
    role: str
    """worker, coordinator or store. Empty for a pod whose labels or name cannot be read."""
    index: int
    term: int
    phase: str
    terminating: bool = False
    is_forced: bool = False
    """Whether it was deleted without waiting for its kubelet, and only finalizers keep it."""
    node: str = ""
    ip: str = ""
    ready: bool = False
    reason: str = ""
    """Of the pod: Evicted, NodeLost, ..."""
    message: str = ""
    true_conditions: frozenset[str] = frozenset()
    unschedulable: str = ""
    """The scheduler's message about a pod that it cannot place."""
    waiting_reason: str = ""
    """Why a container waits, such as ErrImagePull."""
    waiting_message: str = ""
    waiting_container: str = ""
    """Which one that is; empty: the main one."""
    exit_code: int | None = None
    """Exit code of the main container's last end, or of `ended_container`."""
    ended: str = ""
    """Time of that end, by the node's clock, which nothing is measured with."""
    exit_reason: str = ""
    exit_message: str = ""
    ended_container: str = ""
    """The init container that has failed, so that the main one never ran, or the container that is
    started again and again; empty: the main one.
    """
    image: str = ""
    """Of the main container, as the pod names it."""
    image_id: str = ""
    """What the kubelet runs for it; empty until it does."""
    claims: tuple[str, ...] = ()
    only_shared_volumes: bool = True
    """Whether its volumes are only claims, ephemeral ones and configuration."""
    excluded_nodes: tuple[str, ...] = ()
    """The nodes that its affinity excludes."""
    nnodes: str = ""
    """The bounds that torchrun was started with."""
    coordinator_address: str = ""
    """Where it looks for the coordinator; empty for pods that do not look for one."""
    placed: str = ""
    """When it was bound to its node; empty until then."""
    began: str = ""
    """When its main container began, by the node's clock; empty unless it runs."""

    @property
    def alive(self) -> bool:
        """Whether it may still run."""
        return self.phase in ("Pending", "Running", "Unknown") and not self.terminating

    @property
    def is_disrupted(self) -> bool:
        """Whether Kubernetes ends it for a reason outside of it: a drain, a preemption, a taint."""
        return "DisruptionTarget" in self.true_conditions

    @property
    def is_created(self) -> bool:
        """Whether its node has made its containers, or has reported why it cannot."""
        uncreated = ("", "ContainerCreating", "PodInitializing")
        return self.phase != "Pending" or self.waiting_reason not in uncreated


def incarnation_of(worker: Pod) -> int:
    """The number at the end of a worker's name."""
    return int(worker.name.rsplit("-", 1)[-1])


@dataclass(frozen=True)
class EndedWorkers:
    """Workers that were seen to end."""

    indexes: frozenset[int] = frozenset()
    """Of those that were the newest of their index."""
    uids: frozenset[str] = frozenset()
    """Of the pods."""


@dataclass(frozen=True)
class NodeState:
    """What a node says of itself."""

    ready: bool
    out_of_service: bool
    """Whether it has the taint of a node that is shut down."""


@dataclass(frozen=True)
class Node:
    """A node that was read because something suggests that it has failed."""

    name: str
    exists: bool = True
    ready: bool = True
    not_ready_seconds: float = 0.0
    """Since this operator first saw it not Ready."""
    out_of_service: bool = False
    """Whether it has the taint of a node that is shut down."""
    lease_renewed: bool = False
    """Whether its lease changed since this operator began to watch it."""
    lease_unchanged_seconds: float = 0.0
    """For how long its lease has not changed, by this operator's clock."""


LEASE_STALE_SECONDS = 15.0
"""A lease that is older than this is stale. Kubelets renew it every 10 s."""


@dataclass(frozen=True)
class Identity:
    """One object in one state: a request that names both reaches no other."""

    uid: str
    version: str
    """metadata.resourceVersion"""


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
    """The term that its selector names."""
    address: str
    """Cluster IP."""
    created: str = ""
    """When it was made; empty where that is unknown."""
    is_planned: bool = False
    """Whether the same plan makes it, before the pods that are given its address."""


@dataclass(frozen=True)
class CoordinatorView:
    """What the coordinator of the current term last reported."""

    status: CoordinatorStatus | None = None
    failures: int = 0
    """Probes in a row that brought no status: without an answer, or with one that is none."""
    unanswered_seconds: float = 0.0
    """Since the last answer, or the first probe without one; 0 while probes are answered."""
    contacts: Mapping[str, CoordinatorContact] = field(default_factory=dict)
    """UID of a worker -> what its agent reported of the coordinator a moment ago. Agents are asked
    only while the coordinator does not answer.
    """
    trusts_agents: bool = True
    """Whether that counts: not while many coordinators stopped answering at once."""
    answering_seconds: float = 0.0
    """Seconds since its first answer."""
    lost_seconds: Mapping[str, float] = field(default_factory=dict)
    """UID of a member that it reports as lost -> for how long it has done so."""
    no_contact_seconds: Mapping[str, float] = field(default_factory=dict)
    """UID of a running worker -> since the coordinator last had contact with it, or since this
    operator first saw it run. Empty while the coordinator does not report `agents_in_contact`.
    """
    error: str = ""
    """Why the last probe failed."""
    emitted: int = 0
    """Events of `status` up to this sequence have been emitted. Most of them are left out there."""

    @property
    def answer(self) -> CoordinatorStatus | None:
        """Its last status, while it answers. What is sent to one that does not only waits."""
        return None if self.failures else self.status

    @property
    def knows_cut_off(self) -> bool:
        """Whether it says that workers train on without it. It gets no message of theirs."""
        waiting = self.answer.waiting if self.answer else None
        return waiting is not None and waiting.reason == WaitingReason.CutOffGeneration.name

    @cached_property
    def live_members(self) -> frozenset[str]:
        """UIDs of the members that it did not report as lost."""
        members = self.status.members if self.status else ()
        return frozenset(member.member for member in members if not member.lost)


@dataclass(frozen=True)
class Observed:
    """All that the planner may look at."""

    pods: tuple[Pod, ...] = ()
    service: Service | None = None
    seen_seconds: Mapping[str, float] = field(default_factory=dict)
    """UID of the Service, or of a pod that has ended -> for how long this operator has seen it so.
    """
    network_policy: bool = False
    """Whether it is as it is to be, or none is wanted."""
    token_sent_seconds: float | None = None
    """Since this operator last sent the Secret with the token; None: never."""
    unreached_seconds: Mapping[str, float] = field(default_factory=dict)
    """UID of a worker -> for how long the coordinator's new address could not be sent to it."""
    mount_failures: Mapping[str, str] = field(default_factory=dict)
    """UID of a pod that waits for its containers -> why a volume of it cannot be mounted."""
    pulls: Mapping[str, str] = field(default_factory=dict)
    """UID of a pod that waits for its containers -> what the kubelet pulls for it."""
    disruption_budget: int | None = None
    """Workers that the PodDisruptionBudget protects from eviction; None: there is no budget."""
    claim: Claim | None = None
    own: Mapping[str, Identity] = field(default_factory=dict)
    """Kind -> the job's own Service, NetworkPolicy and PodDisruptionBudget, where they exist."""
    conflict: str = ""
    """Which object that is not the job's has the name of one of its own; empty: none has."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    unknown_nodes: frozenset[str] = frozenset()
    """Nodes that pods name, and that the operator has never seen: whoever made a pod may have
    invented its node.
    """
    coordinator: CoordinatorView = CoordinatorView()
    images: Mapping[str, str] = field(default_factory=dict)
    """The images of `trainer` and `coordinator`, if the job started now."""
    token_key: str = ""
    """Name of the key that the job's token would be derived from, if it started now; empty: the
    launcher uses no token.
    """
    apply_error: str = ""
    """Why an action was refused that has not succeeded since; empty when none was."""
    apply_reason: WaitingReason = WaitingReason.ApiError
    """What kind of failure that was."""
    held_back: frozenset[str] = frozenset()
    """Names of the kinds of actions, such as CreateWorker, that wait after a refusal."""
    taken_lately: bool = False
    """Whether somebody has taken the job's label or its owner reference from a pod lately. Few
    rounds see such a pod.
    """
    disowned: tuple[Pod, ...] = ()
    """Pods from which the job was just taken as their owner. They count as failed, and no action
    touches them.
    """
    unmade_term: int | None = None
    """The term whose coordinator or store was refused: no pod has ever had it."""

    def ended_within(self, pod: Pod, seconds: float) -> bool:
        """Whether a pod that has ended did so a moment ago. The node's clock may be wrong."""
        return bool(pod.ended) and self.seen_seconds.get(pod.uid, 0.0) < seconds

    @property
    def service_seconds(self) -> float:
        """For how long this operator has seen the Service that there is."""
        own = self.own.get("Service")
        return self.seen_seconds.get(own.uid, 0.0) if own else 0.0

    def next_term(self, current: int) -> int:
        """The term of the next coordinator or store. A term is never used twice, and one that was
        not used is not skipped: a quota may refuse a pod for days.
        """
        is_unused = current == self.unmade_term and all(pod.term != current for pod in self.pods)
        return current if is_unused else current + 1

    @cached_property
    def workers(self) -> tuple[Pod, ...]:
        """Worker pods, by index."""
        return tuple(
            sorted(
                (pod for pod in self.pods if pod.role == names.WORKER),
                key=lambda pod: (pod.index, pod.name),
            )
        )

    @cached_property
    def coordinators(self) -> tuple[Pod, ...]:
        """Coordinator pods of all terms."""
        return tuple(pod for pod in self.pods if pod.role == names.COORDINATOR)

    @cached_property
    def stores(self) -> tuple[Pod, ...]:
        """Store pods of all attempts of launcher torchrun."""
        return tuple(pod for pod in self.pods if pod.role == names.STORE)

    @property
    def unreadable(self) -> tuple[Pod, ...]:
        """Pods of no known role. They take part in nothing, and leave with the others when the job
        is suspended or ends.
        """
        known = (names.WORKER, names.COORDINATOR, names.STORE)
        return tuple(pod for pod in self.pods if pod.role not in known)

    @property
    def taken(self) -> tuple[Pod, ...]:
        """Pods that take part no more since somebody has edited their labels or their owner."""
        return *self.unreadable, *self.disowned

    @property
    def loses_pods_to_edits(self) -> bool:
        """Whether somebody takes pods from the job so, or has lately done it."""
        return self.taken_lately or bool(self.taken)
