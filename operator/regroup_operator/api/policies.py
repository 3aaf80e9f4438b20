"""The parts of a TrainingJob's spec about elasticity, failures and scheduling."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from regroup_operator.api.resource import Label, Quantity, ResourceName
from regroup_trainer.protocol.config import NonNegativeInt, PositiveInt, Section
from regroup_trainer.protocol.desired import Desired

Budget = Annotated[int, Field(ge=-1, le=2**31 - 1)]


def _default(field: str) -> int:
    """What a coordinator assumes of this field of Desired when it is absent."""
    return int(Desired.model_fields[field].default)


class Resources(Section):
    """Compute resources of a worker's main container, as in a pod."""

    limits: Annotated[dict[Label, Quantity], Field(max_length=32)] | None = None
    """Most that the container may use; `nvidia.com/gpu` also sets the ranks of a worker when
    `nprocPerNode` is auto.
    """
    requests: Annotated[dict[Label, Quantity], Field(max_length=32)] | None = None
    """What the scheduler reserves."""


class ElasticPolicy(Section):
    """The bounds of the number of workers, and how it changes within them."""

    min_replicas: PositiveInt | None = None
    """Fewest workers that train. Default: `replicas`."""
    max_replicas: PositiveInt | None = None
    """Most workers. Default: `replicas`."""
    replica_group_size: PositiveInt | None = None
    """Workers per replica group. A generation has a multiple of it. Follows from `trainer`."""
    scale_up_policy: Literal["WhenCapacity", "Manual", "Never"] = "WhenCapacity"
    """When a job that lost workers grows again: once workers can be placed, on request, or never.
    Default WhenCapacity.
    """
    scale_up_delay_seconds: NonNegativeInt = 30
    """How long capacity must last before the job grows beyond its first size. Default 30."""
    min_seconds_between_resizes: NonNegativeInt = 0
    """Least time between two planned resizes. Default 0."""


class FailureDetection(Section):
    """How soon an unresponsive, hung or slow worker is noticed."""

    heartbeat_milliseconds: Annotated[int, Field(ge=50, le=60_000)] = _default(
        "heartbeat_milliseconds"
    )
    """Time between two heartbeats of an agent. Default 500."""
    timeout_milliseconds: Annotated[int, Field(ge=200, le=600_000)] = _default(
        "timeout_milliseconds"
    )
    """Time without a heartbeat after which a worker counts as lost. Default 2000."""
    progress_timeout_seconds: NonNegativeInt = _default("progress_timeout_seconds")
    """Time without a step after which a generation counts as hung; 0: max(60, 10 x median step).
    Default 0.
    """
    straggler_percent: Annotated[int, Field(ge=1, le=1000)] = _default("straggler_percent")
    """A rank this much slower than the median is a straggler. Default 30."""
    straggler_action: Literal["Report", "Replace"] = "Report"
    """What happens to a straggler. Default Report."""

    @model_validator(mode="after")
    def _timeout_outlasts_heartbeats(self) -> Self:
        if self.timeout_milliseconds < 2 * self.heartbeat_milliseconds:
            raise ValueError(
                f"timeoutMilliseconds {self.timeout_milliseconds} must be at least twice "
                "heartbeatMilliseconds "
                f"({self.heartbeat_milliseconds}): one late heartbeat is no loss"
            )
        return self


class RestartPolicy(Section):
    """How many failures a job survives."""

    max_restarts: Budget = _default("max_restarts")
    """Budget for failures of the program; -1: no limit. Default 10."""
    max_infrastructure_restarts: Budget = -1
    """Budget for lost nodes, evictions and the like; -1: no limit. Default -1."""
    max_hang_restarts: Budget = _default("max_hang_restarts")
    """Budget for hangs; -1: no limit. Default 3."""
    window_seconds: PositiveInt | None = None
    """Healthy progress for this long refills the budgets; absent: never."""
    backoff_seconds: NonNegativeInt = _default("backoff_seconds")
    """Pause after the second failure in a row. It doubles with each further one. Default 1."""
    max_backoff_seconds: NonNegativeInt = _default("max_backoff_seconds")
    """Longest pause. Default 300."""


class OnExitCodes(Section):
    """Which exit codes a rule is about."""

    operator: Literal["In", "NotIn"]
    """Whether the rule is about `values`, or about all others."""
    values: Annotated[
        tuple[Annotated[int, Field(ge=0, le=255)], ...], Field(min_length=1, max_length=64)
    ]
    """Exit codes from 0 to 255, at least one."""


class FailureRule(Section):
    """What to do about one kind of failure. The first rule that matches decides."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Named in events and in the status."""
    on_exit_codes: OnExitCodes | None = None
    """Matches by the exit code of the worker."""
    on_pod_conditions: Annotated[tuple[Label, ...], Field(max_length=16)] = ()
    """Matches by a condition type of the pod, such as DisruptionTarget."""
    on_reasons: Annotated[tuple[Label, ...], Field(max_length=16)] = ()
    """Matches by the reason of pod or container, such as OOMKilled."""
    action: Literal["FailJob", "Restart", "RestartIgnoreBudget", "ReplaceNode"]
    """What to do."""


class FailurePolicy(Section):
    """Rules that are tried before the built-in ones."""

    rules: Annotated[tuple[FailureRule, ...], Field(max_length=32)] = ()
    """Tried in order."""


class NodeFailurePolicy(Section):
    """When a node counts as gone."""

    not_ready_seconds: NonNegativeInt = 5
    """A node that is not Ready this long has lost its workers, unless they still send heartbeats to
    the coordinator. Default 5.
    """
    force_delete_seconds: NonNegativeInt = 30
    """Once a node is not Ready this long, its Terminating pods are removed by force where that is
    safe. Default 30.
    """
    exclude_after_failures: Annotated[int, Field(ge=0, le=1000)] = 2
    """A node that failed this often is avoided by this job; 0: never. Default 2."""


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
    """Series per rank (full) or worker (summary); auto: full up to 256 ranks. Default auto."""
