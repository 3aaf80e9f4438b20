"""The TrainingJob API: every field of spec and status, once.

The CRD is generated from these models (`crd`), the operator reads objects through them, and the command lines use them
to check a file before it is submitted. What the API server can check by itself (types, bounds, pairs of fields, what
may change when) is in the CRD; what it cannot is checked by the validators here and becomes the condition
`Ready=False, reason=InvalidSpec`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from regroup_operator.launcher import COMMAND_FIELD, own_script
from regroup_operator.replica_groups import require_whole_groups, workers_per_group
from regroup_trainer.config import (
    CheckpointPolicy,
    NonNegativeInt,
    PositiveInt,
    ResumePolicy,
    Section,
    TrainConfig,
)

GROUP = "regroup.dev"
VERSION = "v1alpha1"
KIND = "TrainingJob"
PLURAL = "trainingjobs"
API_VERSION = f"{GROUP}/{VERSION}"
MANAGED_BY = f"{GROUP}/operator"
"""The value of spec.managedBy that means this operator; so does its absence."""
NAME_PATTERN = "[a-z]([-a-z0-9]*[a-z0-9])?"
NAME_LIMIT = 50

Quantity = Annotated[str, Field(max_length=64)] | int
"""A Kubernetes quantity such as `500m`, `2Gi` or `1`."""
Label = Annotated[str, Field(max_length=317)]
ResourceName = Annotated[str, Field(min_length=1, max_length=253)]
Word = Annotated[str, Field(max_length=32)]
OptionalName = Annotated[str, Field(max_length=253)]
Sentence = Annotated[str, Field(max_length=1024)]
Time = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]


# --- spec ------------------------------------------------------------------------------------------------------------


class Resources(Section):
    """Compute resources of a worker's main container, as in a pod."""

    limits: Annotated[dict[Label, Quantity], Field(max_length=32)] | None = None
    """Most that the container may use; `nvidia.com/gpu` also sets the ranks of a worker when `nprocPerNode` is auto."""
    requests: Annotated[dict[Label, Quantity], Field(max_length=32)] | None = None
    """What the scheduler reserves."""


class ElasticPolicy(Section):
    """How far the number of workers may move, and how."""

    min_replicas: PositiveInt | None = None
    """Training goes on with this many workers; default: `replicas`."""
    max_replicas: PositiveInt | None = None
    """Never more workers than this; default: `replicas`."""
    replica_group_size: PositiveInt | None = None
    """Workers per replica group, of which the world is a multiple; follows from `trainer`."""
    scale_up_policy: Literal["WhenCapacity", "Manual", "Never"] = "WhenCapacity"
    """When a smaller world grows back: as soon as workers can be placed, on request, never. Default WhenCapacity."""
    scale_up_delay_seconds: NonNegativeInt = 30
    """How long capacity must last before the world grows beyond what was asked at first. Default 30."""
    min_seconds_between_resizes: NonNegativeInt = 0
    """Least time between two planned resizes. Default 0."""


class FailureDetection(Section):
    """How soon a worker that says nothing counts as lost."""

    heartbeat_milliseconds: Annotated[int, Field(ge=50, le=60_000)] = 500
    """Time between two signs of life of an agent. Default 500."""
    timeout_milliseconds: Annotated[int, Field(ge=200, le=600_000)] = 2000
    """Silence after which the coordinator calls a worker lost. Default 2000."""
    progress_timeout_seconds: NonNegativeInt = 0
    """Time without a step after which a world counts as hung; 0: max(60, 10 x median step). Default 0."""
    straggler_percent: Annotated[int, Field(ge=1, le=1000)] = 30
    """A rank this much slower than the median is a straggler. Default 30."""
    straggler_action: Literal["Report", "Replace"] = "Report"
    """What happens to a straggler. Default Report."""

    @model_validator(mode="after")
    def _timeout_outlasts_heartbeats(self) -> Self:
        if self.timeout_milliseconds < 2 * self.heartbeat_milliseconds:
            raise ValueError(
                f"timeoutMilliseconds {self.timeout_milliseconds} must be at least twice heartbeatMilliseconds "
                f"({self.heartbeat_milliseconds}): one late heartbeat is no loss"
            )
        return self


class RestartPolicy(Section):
    """How many failures a job survives."""

    max_restarts: Annotated[int, Field(ge=-1, le=2**31 - 1)] = 10
    """Budget for failures of the program; -1: no limit. Default 10."""
    max_infrastructure_restarts: Annotated[int, Field(ge=-1, le=2**31 - 1)] = -1
    """Budget for lost nodes, evictions and the like; -1: no limit. Default -1."""
    max_hang_restarts: Annotated[int, Field(ge=-1, le=2**31 - 1)] = 3
    """Budget for hangs; -1: no limit. Default 3."""
    window_seconds: PositiveInt | None = None
    """Healthy progress for this long refills the budgets; absent: never."""
    backoff_seconds: NonNegativeInt = 1
    """Pause before the second failure in a row is repaired; doubles with each further one. Default 1."""
    max_backoff_seconds: NonNegativeInt = 300
    """Longest pause. Default 300."""


class OnExitCodes(Section):
    """Which exit codes a rule is about."""

    operator: Literal["In", "NotIn"]
    """Whether `values` are those meant or those excluded."""
    values: Annotated[tuple[Annotated[int, Field(ge=0, le=255)], ...], Field(min_length=1, max_length=64)]
    """Exit codes."""


class FailureRule(Section):
    """What to do about one kind of failure; the first rule that matches counts."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Named in events and in the status."""
    on_exit_codes: OnExitCodes | None = None
    """Matches by the exit code of the worker."""
    on_pod_conditions: Annotated[tuple[Label, ...], Field(max_length=16)] = ()
    """Matches by a condition type of the pod, such as DisruptionTarget."""
    on_reasons: Annotated[tuple[Label, ...], Field(max_length=16)] = ()
    """Matches by the reason of pod or container, such as OOMKilled."""
    action: Literal["FailJob", "Restart", "RestartIgnoreBudget", "ReplaceNode"]
    """What follows."""


class FailurePolicy(Section):
    """Rules before the built-in ones."""

    rules: Annotated[tuple[FailureRule, ...], Field(max_length=32)] = ()
    """Tried in order."""


class NodeFailurePolicy(Section):
    """When a node counts as gone."""

    not_ready_seconds: NonNegativeInt = 5
    """A node that is not Ready this long has lost its workers, unless the coordinator still hears them. Default 5."""
    force_delete_seconds: NonNegativeInt = 30
    """After this long not Ready its Terminating pods are removed by force, where that is safe. Default 30."""
    exclude_after_failures: Annotated[int, Field(ge=0, le=1000)] = 2
    """A node that failed this often is avoided by this job; 0: never. Default 2."""


class ClaimStorage(Section):
    """An existing PersistentVolumeClaim."""

    claim_name: ResourceName
    """Name of a claim in the job's namespace; ReadWriteMany for more than one worker."""
    sub_path: Annotated[str, Field(max_length=512, pattern=r"^[^/].*$")] | None = None
    """Folder in it under which the job's own folder is made."""

    @model_validator(mode="after")
    def _stays_inside(self) -> Self:
        if self.sub_path and ".." in self.sub_path.split("/"):
            raise ValueError(f"subPath {self.sub_path!r} must not contain '..'")
        return self


class ClaimMetadata(Section):
    """Labels and annotations of a claim that the operator makes."""

    labels: Annotated[dict[Label, Annotated[str, Field(max_length=63)]], Field(max_length=32)] | None = None
    """Labels."""
    annotations: Annotated[dict[Label, Annotated[str, Field(max_length=4096)]], Field(max_length=32)] | None = None
    """Annotations."""


class ClaimResources(Section):
    """Size of a claim."""

    requests: Annotated[dict[Label, Quantity], Field(max_length=4)]
    """`storage` is needed."""


class ClaimSpec(Section):
    """What kind of volume."""

    access_modes: Annotated[
        tuple[Literal["ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"], ...], Field(max_length=3)
    ] = ("ReadWriteMany",)
    """ReadWriteMany for more than one worker. Default [ReadWriteMany]."""
    resources: ClaimResources
    """Size."""
    storage_class_name: Annotated[str, Field(max_length=253)] | None = None
    """StorageClass; absent: the cluster's default."""


class ClaimTemplate(Section):
    """A claim that is made with the job, named `<job>-checkpoints`."""

    metadata: ClaimMetadata = ClaimMetadata()
    """Labels and annotations."""
    spec: ClaimSpec
    """Volume."""


class EmptyDirStorage(Section):
    """A folder that lives and dies with the pod: for a single worker that needs no checkpoint after its pod."""

    size_limit: Quantity | None = None
    """Most bytes that it may hold."""


class CheckpointStorage(Section):
    """Where checkpoints are; exactly one kind. The job's own folder is `[subPath/]<namespace>/<job>-<8 of UID>`."""

    persistent_volume_claim: ClaimStorage | None = None
    """An existing claim."""
    volume_claim_template: ClaimTemplate | None = None
    """A claim of the job's own."""
    empty_dir: EmptyDirStorage | None = None
    """A folder of the pod."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        kinds = (self.persistent_volume_claim, self.volume_claim_template, self.empty_dir)
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("give exactly one of persistentVolumeClaim, volumeClaimTemplate, emptyDir")
        return self


class Checkpoint(CheckpointPolicy):
    """When, where and how long checkpoints are kept."""

    storage: CheckpointStorage | None = None
    """Where; needed when the job is elastic or has more than one worker."""
    termination_grace_seconds: Annotated[int, Field(ge=0, le=86400)] = 120
    """Time that a worker has to save and go when it is asked to. Default 120."""
    retention_policy: Literal["Retain", "Delete"] = "Retain"
    """Whether the claim of `volumeClaimTemplate` outlives the job. Default Retain."""

    @property
    def policy(self) -> CheckpointPolicy:
        """As coordinator and ranks know it."""
        return CheckpointPolicy.model_validate({name: getattr(self, name) for name in CheckpointPolicy.model_fields})


class Resume(ResumePolicy):
    """What the job starts from."""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if (self.policy == "Step") != (self.step is not None):
            raise ValueError("policy Step and the field step belong together: give both or neither")
        if (self.policy == "Job") != (self.job_name is not None):
            raise ValueError("policy Job and the field jobName belong together: give both or neither")
        return self

    @property
    def plain(self) -> ResumePolicy:
        """As coordinator and ranks know it."""
        return ResumePolicy(policy=self.policy, step=self.step, job_name=self.job_name)


class Scheduling(Section):
    """Queueing and placement."""

    queue_name: ResourceName | None = None
    """Kueue LocalQueue."""
    priority_class_name: ResourceName | None = None
    """PriorityClass of all pods of the job."""
    topology_key: Label | None = None
    """Node label whose values are kept together."""
    exclusive: bool = False
    """One job per topology domain. Default false."""
    gang: Literal["None", "Workload", "PodGroup"] = "None"
    """All-or-nothing scheduling of minReplicas workers. Default None."""


class Metrics(Section):
    """What is exported."""

    rank_detail: Literal["auto", "full", "summary"] = "auto"
    """Series per rank; auto: only up to 256 ranks. Default auto."""


class TrainingJobSpec(Section):
    """What to train, on how many workers, and what to do when some of them are lost."""

    replicas: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Worker pods wanted, within the elastic bounds; may change at any time (also by `kubectl scale`). Default 1."""
    spares: NonNegativeInt = 0
    """Warm workers that take a lost one's place at once. Default 0."""
    nproc_per_node: int | Literal["auto"] = "auto"
    """Ranks of a worker; auto: one per GPU of the limit, else 1. Default auto."""
    launcher: Literal["regroup", "torchrun"] = "regroup"
    """What starts the ranks: our agent and coordinator, or torchrun of any image. Never changes. Default regroup."""
    image: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Image of the workers; default: the trainer image that the operator was installed with."""
    resources: Resources = Resources()
    """Resources of a worker."""
    template: Annotated[dict[str, Any], Field(max_length=16)] | None = None
    """A partial pod template, merged strategically over the worker pods that the operator makes; `trainer` is the main
    container."""
    trainer: TrainConfig | None = None
    """Configuration of the built-in trainer; exclusive with a command of one's own in `template`."""
    elastic_policy: ElasticPolicy | None = None
    """Bounds of the number of workers; absent: fixed size."""
    failure_detection: FailureDetection = FailureDetection()
    """How soon a loss is noticed."""
    restart_policy: RestartPolicy = RestartPolicy()
    """How many failures are survived."""
    failure_policy: FailurePolicy = FailurePolicy()
    """What each kind of failure means."""
    node_failure_policy: NodeFailurePolicy = NodeFailurePolicy()
    """When a node counts as gone."""
    checkpoint: Checkpoint = Checkpoint()
    """Checkpoints."""
    resume: Resume = Resume()
    """What the job starts from."""
    suspend: bool = False
    """True: save, give all pods back and wait. Default false."""
    managed_by: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """The controller in charge; absent or `regroup.dev/operator`: this operator. Never changes."""
    active_deadline_seconds: PositiveInt | None = None
    """The job fails when it is not done this long after its start."""
    ttl_seconds_after_finished: NonNegativeInt | None = None
    """A finished job is deleted after this time; absent: never."""
    startup_deadline_seconds: PositiveInt | None = None
    """When fewer than minReplicas workers could be scheduled in this time, all are given back and tried again later."""
    clean_pod_policy: Literal["Running", "All", "None"] = "Running"
    """Which pods of a finished job are deleted. Default Running."""
    scheduling: Scheduling = Scheduling()
    """Queueing and placement."""
    network_policy: Literal["Isolated", "None"] = "Isolated"
    """Isolated: only the job's pods, the operator and the metrics scraper reach its pods. Default Isolated."""
    metrics: Metrics = Metrics()
    """What is exported."""

    @property
    def min_replicas(self) -> int:
        """Fewest workers that train."""
        return (self.elastic_policy and self.elastic_policy.min_replicas) or self.replicas

    @property
    def max_replicas(self) -> int:
        """Most workers."""
        return (self.elastic_policy and self.elastic_policy.max_replicas) or self.replicas

    @model_validator(mode="after")
    def _within_bounds(self) -> Self:
        if not self.min_replicas <= self.replicas <= self.max_replicas:
            raise ValueError(
                f"replicas {self.replicas} must lie between elasticPolicy.minReplicas ({self.min_replicas}) and "
                f"elasticPolicy.maxReplicas ({self.max_replicas})"
            )
        require_whole_groups(workers_per_group(self), self.replicas, self.min_replicas)
        return self

    @model_validator(mode="after")
    def _storage_when_shared(self) -> Self:
        storage = self.checkpoint.storage
        shares = self.max_replicas > 1 and self.launcher == "regroup"
        if storage is None and (self.elastic_policy is not None or shares):
            raise ValueError("checkpoint.storage: needed by elastic jobs and more than one worker: name a claim")
        if storage is not None and storage.empty_dir is not None and self.max_replicas > 1:
            raise ValueError(
                "checkpoint.storage.emptyDir: is not shared between workers: use a persistentVolumeClaim, or one worker"
            )
        return self

    @model_validator(mode="after")
    def _delete_only_own_claims(self) -> Self:
        storage = self.checkpoint.storage
        if self.checkpoint.retention_policy == "Delete" and not (storage and storage.volume_claim_template):
            raise ValueError("checkpoint.retentionPolicy: Delete is only possible with storage.volumeClaimTemplate")
        return self

    @model_validator(mode="after")
    def _one_thing_to_run(self) -> Self:
        if self.launcher != "regroup":
            return self
        script = own_script(self.template)
        if script is not None and self.trainer is not None:
            raise ValueError(
                f"trainer: the built-in trainer's configuration, and {COMMAND_FIELD} "
                f"({' '.join(script.arguments)}) both say what to run: keep one of them"
            )
        if script is None and self.trainer is None:
            raise ValueError(
                f"trainer: is missing: give `trainer: {{}}` for the built-in trainer's defaults, or a script of your "
                f"own in {COMMAND_FIELD}"
            )
        return self

    @model_validator(mode="after")
    def _known_processes(self) -> Self:
        if isinstance(self.nproc_per_node, int) and not 1 <= self.nproc_per_node <= 1024:
            raise ValueError(f"nprocPerNode {self.nproc_per_node} must be auto or between 1 and 1024")
        return self


# --- status ----------------------------------------------------------------------------------------------------------

Phase = Literal["Pending", "Starting", "Running", "Recovering", "Resizing", "Suspended", "Succeeded", "Failed"]
ConditionType = Literal[
    "Ready", "Scheduled", "Running", "Progressing", "Degraded", "Checkpointed", "Suspended", "Complete", "Failed"
]
CONDITION_TYPES: tuple[ConditionType, ...] = get_args(ConditionType)


class StatusSection(Section):
    """A part of the status. Unknown fields are ignored: another version of the operator may have written them."""

    model_config = ConfigDict(extra="ignore")


class Condition(StatusSection):
    """One aspect of the job's state, as Kubernetes conditions are."""

    type: Annotated[str, Field(max_length=64)]
    """Ready, Scheduled, Running, Progressing, Degraded, Checkpointed, Suspended, Complete or Failed."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(max_length=128)]
    """A word for programs."""
    message: Sentence = ""
    """A sentence for people."""
    last_transition_time: Time
    """When `status` last changed."""
    observed_generation: NonNegativeInt = 0
    """metadata.generation that it is about."""


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
    """One change of the world."""

    time: Time
    """When the loss was noticed."""
    cause: Word
    """application, infrastructure, hang, preemption or resize."""
    rung: Annotated[str, Field(max_length=8)]
    """Where the state came from: L0 live peers, L1 memory, L2 checkpoint; script: what it saved itself (torchrun)."""
    generation: Word = ""
    """The world that followed, "term.n"."""
    pod: OptionalName = ""
    """The first pod lost."""
    node: OptionalName = ""
    """Its node."""
    exit_code: int | None = None
    """Its exit code, when it ended by itself."""
    message: Sentence = ""
    """What happened."""
    lost_steps: NonNegativeInt | None = None
    """Steps that had to be done again."""
    resumed_from_step: NonNegativeInt | None = None
    """The step that the restored state had completed."""
    detect_seconds: float | None = None
    """From the last sign of life to the detection."""
    down_seconds: float | None = None
    """From the last step before the loss to the first one after it."""
    world_before: NonNegativeInt | None = None
    """Ranks before."""
    world_after: NonNegativeInt | None = None
    """Ranks after."""


class CheckpointStatus(StatusSection):
    """The newest checkpoint."""

    last_step: NonNegativeInt | None = None
    """Its step."""
    last_time: Time | None = None
    """When it was published."""
    path: Annotated[str, Field(max_length=4096)] | None = None
    """Where, as the workers see it."""
    size_bytes: Annotated[int, Field(ge=0, le=2**60)] | None = None
    """Its size."""
    seconds: float | None = None
    """From the decision to the rename."""
    verified: bool | None = None
    """Whether it was published with its manifest of checksums."""


class ProgressStatus(StatusSection):
    """How far the training is; written at most every 30 s when nothing else changes."""

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
    loss: float | None = None
    """Mean loss per token of the last step, nats."""
    updated_time: Time | None = None
    """When the last step was committed."""


class GoodputStatus(StatusSection):
    """Where the time went. It only grows."""

    productive_seconds: float = 0
    """Time in steps that count."""
    startup_seconds: float = 0
    """Time until the first step."""
    recovery_seconds: float = 0
    """Time of rendezvous, restoring, and steps done again."""
    checkpoint_seconds: float = 0
    """Time that training stood still for checkpoints."""
    waiting_seconds: float = 0
    """Time without a world."""
    lost_steps: NonNegativeInt = 0
    """Steps done again."""
    ratio: float = 0
    """productiveSeconds as a share of all."""


class LedgerStatus(StatusSection):
    """The account that goodput is computed from; a new coordinator is seeded with it."""

    seconds: Annotated[dict[Word, float], Field(max_length=16)] = Field(default_factory=dict)
    """Seconds by phase."""
    lost_work_seconds: float = 0
    """Time of steps done again."""


class WorkerStatus(StatusSection):
    """One worker pod."""

    index: NonNegativeInt
    """Its place in the job, kept by replacements."""
    pod: ResourceName
    """Its pod."""
    node: OptionalName = ""
    """Its node."""
    state: Word
    """Pending, Running, Training, Spare, Terminating, Succeeded or Failed."""
    rank: NonNegativeInt | None = None
    """Its first rank in the current world."""


class Straggler(StatusSection):
    """A slow rank."""

    rank: NonNegativeInt
    """The rank."""
    node: OptionalName = ""
    """Its node."""
    percent: float = 0
    """How much slower than the median."""


class TrainingJobStatus(StatusSection):
    """What the operator saw and did."""

    observed_generation: NonNegativeInt = 0
    """metadata.generation of the spec that this is about."""
    phase: Phase | None = None
    """One word for printing; programs read conditions."""
    message: Sentence = ""
    """What the job does now, or why it is not training."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = ()
    """Ready, Scheduled, Running, Progressing, Degraded, Checkpointed, Suspended, Complete, Failed."""
    start_time: Time | None = None
    """When it first, or after a suspension again, asked for pods."""
    completion_time: Time | None = None
    """When it completed."""
    replicas: NonNegativeInt = 0
    """Worker pods that exist and are not going."""
    ready_replicas: NonNegativeInt = 0
    """Worker pods that take part in the current world."""
    ready_spares: NonNegativeInt = 0
    """Warm spares."""
    world_size: NonNegativeInt = 0
    """Ranks of the current world."""
    selector: Annotated[str, Field(max_length=512)] | None = None
    """Label selector of the worker pods, for autoscalers."""
    world_generation: Word | None = None
    """The current world, "term.n"."""
    coordinator_term: NonNegativeInt = 0
    """Term of the newest coordinator; raised before its pod is made."""
    next_incarnation: PositiveInt = 1
    """Number for the next worker pods; raised before they are made."""
    images: Annotated[dict[Word, Annotated[str, Field(max_length=1024)]], Field(max_length=8)] = Field(
        default_factory=dict
    )
    """Images of `trainer` and `coordinator`, fixed at the start until the next resume."""
    protocol_version: NonNegativeInt | None = None
    """Version of what operator, coordinator and agents speak, fixed at the start until the next resume."""
    handled_pods: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=1024)] = ()
    """UIDs of worker pods whose end is accounted for."""
    pod_failures: NonNegativeInt = 0
    """Worker pods in a row that failed without a step in between."""
    last_pod_failure_time: Time | None = None
    """When the last of them was noticed."""
    node_failures: Annotated[dict[ResourceName, NonNegativeInt], Field(max_length=256)] = Field(default_factory=dict)
    """Workers lost by node."""
    suspected_nodes: Annotated[tuple[ResourceName, ...], Field(max_length=256)] = ()
    """Nodes that went silent; new workers avoid them until they are seen alive."""
    excluded_nodes: Annotated[tuple[ResourceName, ...], Field(max_length=256)] = ()
    """Nodes that failed too often for this job."""
    restarts: Restarts = Restarts()
    """Recoveries so far."""
    restart_count: NonNegativeInt = 0
    """All of them but planned changes of size."""
    recoveries: Annotated[tuple[RecoveryStatus, ...], Field(max_length=10)] = ()
    """The last ten."""
    checkpoint: CheckpointStatus = CheckpointStatus()
    """The newest checkpoint."""
    progress: ProgressStatus = ProgressStatus()
    """How far."""
    goodput: GoodputStatus = GoodputStatus()
    """Where the time went."""
    ledger: LedgerStatus = LedgerStatus()
    """The account behind goodput."""
    stragglers: Annotated[tuple[Straggler, ...], Field(max_length=64)] = ()
    """Slow ranks."""
    workers: Annotated[tuple[WorkerStatus, ...], Field(max_length=64)] = ()
    """The first 64 workers."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of that type, None while there is none."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def holds(self, kind: ConditionType) -> bool:
        """Whether the condition of that type is True."""
        condition = self.condition(kind)
        return condition is not None and condition.status == "True"


# --- reading ---------------------------------------------------------------------------------------------------------


class InvalidSpecError(ValueError):
    """The spec breaks a rule that the API server cannot check. The message names the field, its value and a way out."""


def parse_spec(document: Mapping[str, Any]) -> TrainingJobSpec:
    """Read a spec (camelCase, as in YAML). Raises InvalidSpecError, which names every wrong field."""
    try:
        return TrainingJobSpec.model_validate(document)
    except ValidationError as error:
        raise InvalidSpecError(
            "; ".join(_explain(problem) for problem in error.errors(include_url=False)[:5])
        ) from error


def _explain(problem: Any) -> str:
    path = ".".join(["spec", *(str(part) for part in problem["loc"])])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] != "extra_forbidden":
        given = "" if isinstance(problem["input"], Mapping) else f", got {problem['input']!r}"
        return f"{path}: {message}{given}"
    nearest = difflib.get_close_matches(str(problem["loc"][-1]), known_fields(problem["loc"][:-1]), n=1)
    hint = f": did you mean {nearest[0]!r}?" if nearest else ""
    return f"{path}: unknown field{hint}"


def known_fields(path: tuple[str | int, ...]) -> list[str]:
    """The names (camelCase) of the fields of the section at `path` under spec; empty where there is no section."""
    model: type[BaseModel] | None = TrainingJobSpec
    for part in path:
        fields = {field.alias: field for field in model.model_fields.values()} if model else {}
        model = _section_of(fields[part].annotation) if part in fields else model if isinstance(part, int) else None
    return [str(field.alias) for field in model.model_fields.values()] if model else []


def _section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_of(part))), None)
