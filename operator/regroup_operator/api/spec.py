"""The spec of a TrainingJob: every field once.

The CRD is generated from these models (`crd`), the operator reads objects through them, and the
command lines use them to check a file before it is submitted. What the API server can check by
itself (types, bounds, pairs of fields, what may change when) is in the CRD; what it cannot is
checked by the validators here and becomes the condition `Ready=False, reason=InvalidSpec`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from regroup_operator.api.checkpoint_storage import Checkpoint, Resume
from regroup_operator.api.launcher_flags import LaunchFlags
from regroup_operator.api.policies import (
    ElasticPolicy,
    FailureDetection,
    FailurePolicy,
    Metrics,
    NodeFailurePolicy,
    Resources,
    RestartPolicy,
    Scheduling,
)
from regroup_operator.api.replica_groups import require_whole_groups, workers_per_group
from regroup_operator.api.user_script import COMMAND_FIELD, misnamed_container, user_script
from regroup_trainer.protocol.config import (
    NonNegativeInt,
    PositiveInt,
    Section,
    TrainConfig,
)
from regroup_trainer.protocol.message import listed, shorten
from regroup_trainer.protocol.progress_pattern import PATTERN_LIMIT, find_problem

_Value = TypeVar("_Value")
Launcher = Literal["regroup", "torchrun"]


class TrainingJobSpec(Section):
    """What to train, on how many workers, and what to do when workers are lost."""

    replicas: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Worker pods wanted, within the elastic bounds. It may change at any time, also by `kubectl
    scale`. Default 1.
    """
    spares: NonNegativeInt = 0
    """Warm workers that replace a lost one at once. Default 0."""
    nproc_per_node: int | Literal["auto"] = "auto"
    """Ranks of a worker; auto: one per GPU of the limit, else 1. Default auto."""
    launcher: Launcher = "regroup"
    """What starts the ranks: Regroup's agent and coordinator, or stock torchrun of any image. It
    never changes. Default regroup.
    """
    image: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Image of the workers. Default: the trainer image of the operator's installation."""
    resources: Resources = Resources()
    """Resources of a worker."""
    template: Annotated[dict[str, Any], Field(max_length=16)] | None = None
    """A partial pod template, merged strategically over the worker pods that the operator makes.
    The main container is `trainer`. An init container without an image has that of the workers.
    Workers prefer different nodes, by a topology spread constraint; one of yours over
    `kubernetes.io/hostname` is merged with it.
    """
    trainer: TrainConfig | None = None
    """Configuration of the built-in trainer. Exclusive with a command in `template`."""
    progress_pattern: Annotated[str, Field(min_length=1, max_length=PATTERN_LIMIT)] | None = None
    """Regular expression (RE2) with groups named step, total and loss: finds the steps of a script
    in what rank 0 writes. Only for launcher regroup.
    """
    elastic_policy: ElasticPolicy | None = None
    """Bounds of the number of workers; absent: fixed size."""
    failure_detection: FailureDetection = FailureDetection()
    """How soon losses, hangs and stragglers are noticed."""
    restart_policy: RestartPolicy = RestartPolicy()
    """How many failures the job survives."""
    failure_policy: FailurePolicy = FailurePolicy()
    """What each kind of failure means."""
    node_failure_policy: NodeFailurePolicy = NodeFailurePolicy()
    """When a node counts as gone."""
    checkpoint: Checkpoint = Checkpoint()
    """When checkpoints are saved, how many are kept, and where."""
    resume: Resume = Resume()
    """What the job starts from."""
    suspend: bool = False
    """True: save, delete all pods, and wait. Default false."""
    managed_by: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """The controller in charge. Absent or `regroup.dev/operator`: this operator. Never changes."""
    active_deadline_seconds: PositiveInt | None = None
    """The job fails when it is not done this long after its start."""
    ttl_seconds_after_finished: NonNegativeInt | None = None
    """A finished job is deleted after this time. Absent: never."""
    startup_deadline_seconds: PositiveInt | None = None
    """When fewer than minReplicas workers could be scheduled in this time, all pods are deleted and
    made again later.
    """
    clean_pod_policy: Literal["Running", "All", "None"] = "Running"
    """Which pods of a finished job are deleted. Default Running."""
    scheduling: Scheduling = Scheduling()
    """Queueing and placement."""
    network_policy: Literal["Isolated", "None"] = "Isolated"
    """Isolated: only the job's own pods, the operator and the metrics scraper may reach its pods.
    None: no policy of the job's own. Default Isolated.
    """
    metrics: Metrics = Metrics()
    """What is exported."""

    @property
    def uses_torchrun(self) -> bool:
        """Whether stock torchrun starts the ranks, and no coordinator leads them."""
        return self.launcher == "torchrun"

    @property
    def min_replicas(self) -> int:
        """Fewest workers that train."""
        return (self.elastic_policy and self.elastic_policy.min_replicas) or self.replicas

    @property
    def max_replicas(self) -> int:
        """Most workers."""
        return (self.elastic_policy and self.elastic_policy.max_replicas) or self.replicas

    @field_validator("progress_pattern")
    @classmethod
    def _is_possible_pattern(cls, pattern: str | None) -> str | None:
        problem = None if pattern is None else find_problem(pattern)
        if problem is not None:
            raise ValueError(problem)
        return pattern

    @model_validator(mode="after")
    def _apply_command(self) -> Self:
        """Take what the command line of a launcher says, where the spec has the default."""
        script = user_script(self.template)
        if script is None:
            return self
        flags = script.flags
        self._require_possible(flags)
        count, flag = self._ranks_asked(flags)
        ranks = _agreed("nprocPerNode", flag, self.nproc_per_node, count, "auto")
        limit = _agreed(
            "restartPolicy.maxRestarts",
            "--max-restarts",
            self.restart_policy.max_restarts,
            flags.max_restarts,
            RestartPolicy().max_restarts,
        )
        restart_policy = self.restart_policy.model_copy(update={"max_restarts": limit})
        vars(self).update(nproc_per_node=ranks, restart_policy=restart_policy)
        return self

    def _require_possible(self, flags: LaunchFlags) -> None:
        """Raises ValueError for flags that this launcher or these workers do not support."""
        if flags.stock and not self.uses_torchrun:
            raise ValueError(
                f"{COMMAND_FIELD}: {listed(flags.stock)}: only launcher torchrun supports this: "
                "leave it out"
            )
        if flags.accelerate and self.uses_torchrun:
            raise ValueError(
                f"{COMMAND_FIELD}: --config_file={shorten(flags.accelerate.config_file)}: stock "
                "torchrun does not read it: write its settings as flags, or use launcher regroup"
            )
        if flags.nodes not in (None, (self.min_replicas, self.max_replicas)):
            low, high = flags.nodes
            raise ValueError(
                f"{COMMAND_FIELD}: --nnodes={low}:{high} (--standalone is 1:1), and the job has "
                f"{self.min_replicas} to {self.max_replicas} workers: leave it out, or set "
                "spec.replicas and spec.elasticPolicy"
            )
        if flags.machines and not self.min_replicas <= flags.machines <= self.max_replicas:
            raise ValueError(
                f"{COMMAND_FIELD}: --num_machines is {flags.machines}, and the job has "
                f"{self.min_replicas} to {self.max_replicas} workers: leave it out, or set "
                "spec.replicas"
            )

    def _ranks_asked(self, flags: LaunchFlags) -> tuple[int | Literal["auto"] | None, str]:
        """Ranks of a worker by the command line, and the flag that says so. Raises ValueError."""
        if flags.processes is None:
            return flags.ranks, "--nproc-per-node"
        if flags.machines is None and self.min_replicas != self.max_replicas:
            raise ValueError(
                f"{COMMAND_FIELD}: --num_processes is {flags.processes} in all, and the job has "
                f"{self.min_replicas} to {self.max_replicas} workers: leave it out, and set "
                "spec.nprocPerNode to the ranks of one worker"
            )
        workers = flags.machines or self.replicas
        if flags.processes % workers:
            raise ValueError(
                f"{COMMAND_FIELD}: --num_processes is {flags.processes} in all, which cannot be "
                f"shared evenly by {workers} workers: give a multiple of {workers}"
            )
        flag = f"--num_processes {flags.processes}, shared by {workers} workers,"
        return flags.processes // workers, flag

    @model_validator(mode="after")
    def _within_bounds(self) -> Self:
        if not self.min_replicas <= self.replicas <= self.max_replicas:
            raise ValueError(
                f"replicas {self.replicas} must lie between elasticPolicy.minReplicas "
                f"({self.min_replicas}) and "
                f"elasticPolicy.maxReplicas ({self.max_replicas})"
            )
        require_whole_groups(workers_per_group(self), self.replicas, self.min_replicas)
        return self

    @model_validator(mode="after")
    def _storage_when_shared(self) -> Self:
        storage = self.checkpoint.storage
        shares = self.max_replicas > 1 and not self.uses_torchrun
        if storage is None and (self.elastic_policy is not None or shares):
            raise ValueError(
                "checkpoint.storage: needed by elastic jobs and more than one worker: name a claim"
            )
        if storage is not None and storage.empty_dir is not None and self.max_replicas > 1:
            raise ValueError(
                "checkpoint.storage.emptyDir: is not shared between workers: use a "
                "persistentVolumeClaim, or one worker"
            )
        return self

    @model_validator(mode="after")
    def _delete_only_own_claims(self) -> Self:
        storage = self.checkpoint.storage
        if self.checkpoint.retention_policy == "Delete" and not (
            storage and storage.volume_claim_template
        ):
            raise ValueError(
                "checkpoint.retentionPolicy: Delete is only possible with "
                "storage.volumeClaimTemplate"
            )
        return self

    @model_validator(mode="after")
    def _one_thing_to_run(self) -> Self:
        if self.uses_torchrun:
            return self
        script = user_script(self.template)
        if script is not None and self.trainer is not None:
            raise ValueError(
                f"trainer: the built-in trainer's configuration, and {COMMAND_FIELD} "
                f"({shorten(' '.join(script.arguments))}) both say what to run: keep one of them"
            )
        if script is None and self.progress_pattern is not None:
            raise ValueError(
                f"progressPattern {self.progress_pattern!r} is only for a script of your own: the "
                "built-in trainer reports its steps: leave it out"
            )
        if script is None and self.trainer is None:
            raise ValueError(
                f"trainer: is missing: give `trainer: {{}}` for the built-in trainer's defaults, "
                f"or a script of your own in {COMMAND_FIELD}{misnamed_container(self.template)}"
            )
        return self

    @model_validator(mode="after")
    def _known_processes(self) -> Self:
        if isinstance(self.nproc_per_node, int) and not 1 <= self.nproc_per_node <= 1024:
            raise ValueError(
                f"nprocPerNode {self.nproc_per_node} must be auto or between 1 and 1024"
            )
        return self


def _agreed(name: str, flag: str, given: _Value, asked: _Value | None, default: _Value) -> _Value:
    """The value of a field that a flag may set. Raises ValueError where they differ."""
    if asked is None or asked == given:
        return given
    if given == default:
        return asked
    raise ValueError(
        f"{name} is {given}, and {flag} in {COMMAND_FIELD} is {asked}: leave one of them out"
    )
