"""The status of a TrainingJob: every field once."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from regroup_operator.api.resource import OptionalName, ResourceName, Sentence, Time, Word
from regroup_trainer.protocol.config import (
    NonNegativeInt,
    PositiveInt,
    Section,
)

Phase = Literal[
    "Pending", "Starting", "Running", "Recovering", "Resizing", "Suspended", "Succeeded", "Failed"
]
ConditionType = Literal[
    "Ready",
    "Scheduled",
    "Running",
    "Progressing",
    "Degraded",
    "Checkpointed",
    "Suspended",
    "Complete",
    "Failed",
]
NODES_REMEMBERED = 256
"""Nodes whose failures a job remembers, and nodes that it suspects."""
PODS_HANDLED = 8192
"""Ended pods that a job remembers: two for each of the most workers, since the end of a worker is
kept until its successor has ended too.
"""
WORKERS_REMEMBERED = 4096
"""Running workers that a torchrun job remembers: the most that one may have."""
EVENTS_KEPT = 10
"""Events that a job remembers, in case that they are still to be made."""
CHECKPOINT_REQUEST, RESTART_REQUEST = "CheckpointNow", "Restart"
REQUEST_LIMIT = 64
"""Characters of the value of a request."""
IMAGE_LIMIT = 1024
"""Characters of an image that a job remembers."""
STRAGGLERS_KEPT = 64
"""The slowest ranks, that a job shows."""
LEDGER_PHASES = 16
"""Names of phases that an account may have, those of other releases included."""
PHASE_LIMIT = 32
"""Characters of the longest of them."""
RENAMED = {"worldGeneration": "rendezvousGeneration"}
"""Name of a field of the status in release 0.1 -> its name since. The schema keeps the former ones,
so that the API server returns what release 0.1 stored. The operator reads them and never writes
them.
"""
RENAMED_IN_RECOVERIES = {
    "rung": "restoredFrom",
    "worldBefore": "worldSizeBefore",
    "worldAfter": "worldSizeAfter",
}
"""The same of the entries of `recoveries`."""


class StatusSection(Section):
    """A part of the status. Unknown fields are ignored: another version of the operator may have
    written them.
    """

    model_config = ConfigDict(extra="ignore")


class Condition(StatusSection):
    """One aspect of the job's state, as Kubernetes conditions are."""

    type: Annotated[str, Field(max_length=64)]
    """Ready, Scheduled, Running, Progressing, Degraded, Checkpointed, Suspended, Complete or
    Failed.
    """
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(max_length=128)] = "Unknown"
    """One CamelCase word, for programs."""
    message: Sentence = ""
    """One sentence, for people."""
    last_transition_time: Time = "1970-01-01T00:00:00Z"
    """When `status` last changed."""
    observed_generation: NonNegativeInt = 0
    """metadata.generation of the spec that the condition is about."""


class Restarts(StatusSection):
    """Recoveries so far, by what caused them."""

    application: NonNegativeInt = 0
    """The program failed."""
    infrastructure: NonNegativeInt = 0
    """A node, pod or connection was lost."""
    hang: NonNegativeInt = 0
    """No progress."""
    preemption: NonNegativeInt = 0
    """Asked to leave."""
    resize: NonNegativeInt = 0
    """Planned change of size."""


class RecoveryStatus(StatusSection):
    """One change from a generation to the next."""

    time: Time
    """When the loss was noticed."""
    cause: Word
    """application, infrastructure, hang, preemption or resize."""
    restored_from: Word = "Nothing"
    """Where the state came from: Peers (live ranks), Snapshot (memory), Checkpoint, Script (what
    the script of a torchrun job saved), or Nothing (a first start).
    """
    generation: Word = ""
    """The generation that followed, "term.n"."""
    pod: OptionalName = ""
    """The first pod lost."""
    node: OptionalName = ""
    """The node on which that pod ran."""
    exit_code: int | None = None
    """Its exit code, when it ended by itself."""
    message: Sentence = ""
    """What happened."""
    lost_steps: NonNegativeInt | None = None
    """Steps that had to be done again."""
    unflushed_steps: NonNegativeInt = 0
    """Of these, reported but not in the volume's history."""
    resumed_from_step: NonNegativeInt | None = None
    """The step that the restored state had completed."""
    detect_seconds: float | None = None
    """From the last sign of life to the detection."""
    down_seconds: float | None = None
    """From the last step before the loss to the first one after it."""
    world_size_before: NonNegativeInt | None = None
    """Number of ranks in the generation before."""
    world_size_after: NonNegativeInt | None = None
    """Number of ranks in the generation that followed."""


class CheckpointStatus(StatusSection):
    """The checkpoint that was published last. Memory snapshots do not count, nor does what a script
    saves without Regroup.
    """

    last_step: NonNegativeInt | None = None
    """The step after which it was taken."""
    last_time: Time | None = None
    """When it was published."""
    path: Annotated[str, Field(max_length=4096)] | None = None
    """Its folder, as the workers see it."""
    size_bytes: Annotated[int, Field(ge=0, le=2**60)] | None = None
    """Size of all its files, in bytes."""
    seconds: float | None = None
    """From the decision to the rename."""


class ProgressStatus(StatusSection):
    """How far the training is. Written at most every 30 s while nothing else changes."""

    step: NonNegativeInt = 0
    """Steps committed."""
    total_steps: NonNegativeInt = 0
    """Steps in all."""
    epoch: float | None = None
    """Passes over the data."""
    percentage: Annotated[int, Field(ge=0, le=100)] = 0
    """step / totalSteps, rounded down."""
    remaining_seconds: NonNegativeInt | None = None
    """At the current rate."""
    tokens_per_second: float | None = None
    """Over all ranks."""
    samples_per_second: float | None = None
    """Instead, where the loss is one per sample: of images, and of Sessions that give no weight."""
    steps_per_second: float | None = None
    """Of a script that reports its steps."""
    loss: float | None = None
    """Mean loss per token of the last step, nats; or what a script calls its loss."""
    updated_time: Time | None = None
    """When the last step was committed."""


class GoodputStatus(StatusSection):
    """How the time was spent. The numbers only grow."""

    productive_seconds: float = 0
    """Time in steps that count."""
    startup_seconds: float = 0
    """Time until the first step."""
    recovery_seconds: float = 0
    """Time of rendezvous, restoring, and steps done again."""
    checkpoint_seconds: float = 0
    """Time in which training waited for checkpoints."""
    waiting_seconds: float = 0
    """Time without a generation."""
    lost_steps: NonNegativeInt = 0
    """Steps done again."""
    ratio: float = 0
    """productiveSeconds as a share of all."""


class LedgerStatus(StatusSection):
    """The account that goodput is computed from. A new coordinator starts from it."""

    seconds: Annotated[dict[Word, float], Field(max_length=LEDGER_PHASES)] = Field(
        default_factory=dict
    )
    """Seconds by phase."""
    lost_work_seconds: float = 0
    """Time of steps done again."""
    gpu_seconds: Annotated[dict[Word, float], Field(max_length=LEDGER_PHASES)] = Field(
        default_factory=dict
    )
    """Seconds of all GPUs by use."""
    lost_gpu_seconds: float = 0
    """Of steps done again, or to be."""


class WorkerStatus(StatusSection):
    """One worker pod."""

    index: NonNegativeInt
    """Its place in the job, kept by replacements."""
    pod: ResourceName
    """Name of the pod; a replacement has another."""
    node: OptionalName = ""
    """The node that the pod is bound to; empty until then."""
    state: Word
    """Pending, Warming (imports), Running, Training, Spare, Terminating, Succeeded or Failed."""
    rank: NonNegativeInt | None = None
    """Its first rank in the current generation."""


class StragglerStatus(StatusSection):
    """A slow rank."""

    rank: NonNegativeInt
    """Its rank in the current generation."""
    node: OptionalName = ""
    """The node on which it runs."""
    percent: float = 0
    """How much longer it computes a step than the median rank, in percent."""


class RequestStatus(StatusSection):
    """What became of something that somebody asked for once, by an annotation of the job."""

    name: Word
    """CheckpointNow, Restart: of annotation checkpoint-now or restart-from-checkpoint."""
    value: Annotated[str, Field(max_length=REQUEST_LIMIT)]
    """The value of the annotation. The same one is not acted on again."""
    time: Time
    """When the outcome was noted."""
    outcome: Word
    """Pending, Done, Failed or Refused."""
    message: Sentence = ""
    """One sentence, for people."""


class EventStatus(StatusSection):
    """It is written here before the Event is made, so that it is not lost."""

    name: ResourceName
    """Of the Event."""
    time: Time
    """When it was decided on."""
    type: Literal["Normal", "Warning"]
    """Normal or Warning."""
    reason: Word
    """One CamelCase word."""
    message: Sentence = ""
    """One sentence."""


class CoordinatorEventsStatus(StatusSection):
    """Up to which one a coordinator's events exist. The next operator does not make them again."""

    term: NonNegativeInt = 0
    """Of the coordinator."""
    sequence: NonNegativeInt = 0
    """Of its newest event that exists."""


class TrainingJobStatus(StatusSection):
    """The state of the job, as the operator observed it."""

    observed_generation: NonNegativeInt = 0
    """metadata.generation of the spec that the status is about."""
    phase: Phase | None = None
    """One word for printing; programs read conditions."""
    message: Sentence = ""
    """What the job does now, or why it does not train."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = ()
    """Ready, Scheduled, Running, Progressing, Degraded, Checkpointed, Suspended, Complete, Failed.
    """
    start_time: Time | None = None
    """When the job first asked for pods, or did again after a suspension."""
    completion_time: Time | None = None
    """When it completed."""
    replicas: NonNegativeInt = 0
    """Worker pods that exist and are not being deleted."""
    ready_replicas: NonNegativeInt = 0
    """Worker pods that take part in the current generation."""
    ready_spares: NonNegativeInt = 0
    """Warm spares."""
    world_size: NonNegativeInt = 0
    """Ranks of the current generation."""
    selector: Annotated[str, Field(max_length=512)] | None = None
    """Label selector of the worker pods, for autoscalers."""
    rendezvous_generation: Word | None = None
    """The current generation, "term.n"."""
    coordinator_term: NonNegativeInt = 0
    """Term of the newest coordinator. Raised before its pod is made."""
    service_address: OptionalName = ""
    """Cluster IP of the Service that workers connect to. A new Service asks for it."""
    next_incarnation: PositiveInt = 1
    """Number of the next worker pods. Raised before they are made."""
    images: Annotated[
        dict[Word, Annotated[str, Field(max_length=IMAGE_LIMIT)]], Field(max_length=8)
    ] = Field(default_factory=dict)
    """Images of `trainer` and `coordinator`, from the start until the job is suspended. They are
    named by digest as soon as a kubelet reports one of the same repository.
    """
    last_images: Annotated[
        dict[Word, Annotated[str, Field(max_length=IMAGE_LIMIT)]], Field(max_length=8)
    ] = Field(default_factory=dict)
    """`images` when the job was last suspended, for clients that read its checkpoints meanwhile."""
    protocol_version: NonNegativeInt | None = None
    """Version of the protocol of coordinator and agents, from the start until the job is suspended.
    """
    token_key: Word | None = None
    """Name of the operator's key that the job's token is derived from; of a job's whole life."""
    handled_pods: Annotated[
        tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=PODS_HANDLED)
    ] = ()
    """UIDs of worker pods whose end has been counted."""
    running_workers: (
        Annotated[dict[Word, NonNegativeInt], Field(max_length=WORKERS_REMEMBERED)] | None
    ) = None
    """Of a torchrun job, indexes of workers that run -> their incarnation: "0-63": 1, "64": 2. The
    loss of each is yet to be counted.
    """
    pod_failures: NonNegativeInt = 0
    """Worker pods in a row that failed without a step in between."""
    last_pod_failure_time: Time | None = None
    """When the last of them was noticed."""
    image_error_time: Time | None = None
    """Since when a worker's image cannot be pulled."""
    image_error_pod: ResourceName | None = None
    """That worker's pod. Errors of others before and after it do not add to its own."""
    node_failures: Annotated[
        dict[ResourceName, NonNegativeInt], Field(max_length=NODES_REMEMBERED)
    ] = Field(default_factory=dict)
    """Workers lost by node. One is forgotten after each hour without another."""
    node_failure_times: Annotated[dict[ResourceName, Time], Field(max_length=NODES_REMEMBERED)] = (
        Field(default_factory=dict)
    )
    """When each of them last changed."""
    suspected_nodes: Annotated[tuple[ResourceName, ...], Field(max_length=NODES_REMEMBERED)] = ()
    """Unresponsive nodes. New workers avoid them until they respond again."""
    excluded_nodes: Annotated[tuple[ResourceName, ...], Field(max_length=256)] = ()
    """Nodes that failed too often for this job. New workers avoid them while minReplicas workers
    fit elsewhere.
    """
    restarts: Restarts = Restarts()
    """Recoveries so far."""
    restart_count: NonNegativeInt = 0
    """All of them but planned changes of size."""
    recoveries: Annotated[tuple[RecoveryStatus, ...], Field(max_length=10)] = ()
    """The last ten."""
    recent_events: Annotated[tuple[EventStatus, ...], Field(max_length=EVENTS_KEPT)] = ()
    """The newest events of the operator's own."""
    coordinator_events: CoordinatorEventsStatus = CoordinatorEventsStatus()
    """Which of its coordinator's events are known to exist as Events."""
    checkpoint: CheckpointStatus = CheckpointStatus()
    """The checkpoint on the volume that was published last. Memory snapshots do not count."""
    requests: Annotated[tuple[RequestStatus, ...], Field(max_length=4)] = ()
    """The newest one of each name."""
    progress: ProgressStatus = ProgressStatus()
    """How far the training is."""
    goodput: GoodputStatus = GoodputStatus()
    """How the time was spent."""
    ledger: LedgerStatus = LedgerStatus()
    """The account behind goodput."""
    stragglers: Annotated[tuple[StragglerStatus, ...], Field(max_length=STRAGGLERS_KEPT)] = ()
    """Ranks that compute much longer than the median."""
    workers: Annotated[tuple[WorkerStatus, ...], Field(max_length=64)] = ()
    """The first 64 workers."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of that type, None while there is none."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def request(self, name: str) -> RequestStatus | None:
        """The newest request of that name, None while there is none."""
        return next((request for request in self.requests if request.name == name), None)

    def holds(self, kind: ConditionType) -> bool:
        """Whether the condition of that type is True."""
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"
