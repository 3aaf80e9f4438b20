"""What is not implemented yet: one table, for the operator and for offline checks of a file.

A field must not be accepted and then ignored. Each row names a field of spec, what another value
than its default would ask for, and which other values are honoured. A job with one that is not gets
the condition `Ready=False, reason=NotSupported`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from regroup_operator.api.policies import ElasticPolicy
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.user_script import COMMAND_FIELD, user_script


@dataclass(frozen=True)
class Limit:
    """One row of the table. The default of the field is honoured always."""

    path: str
    """Below spec, names as in YAML."""
    meaning: str
    """What another value would do."""
    also: tuple[object, ...] = ()
    """The other values that are honoured."""


_DEFAULTS = TrainingJobSpec.model_construct(elastic_policy=ElasticPolicy())
"""Each field has its default, also those of a section that may be absent."""
LIMITS = (
    Limit("elasticPolicy.scaleUpPolicy", "holding back lost workers' replacements"),
    Limit("elasticPolicy.scaleUpDelaySeconds", "a delay before growing"),
    Limit("elasticPolicy.minSecondsBetweenResizes", "a pause between resizes"),
    Limit("restartPolicy.windowSeconds", "refilling the restart budget"),
    Limit("failurePolicy.rules", "failure rules of one's own"),
    Limit("checkpoint.retentionPolicy", "deleting checkpoints with the job"),
    Limit("resume.policy", "starting from another job's checkpoint", also=("Never", "Step")),
    Limit("startupDeadlineSeconds", "giving pods back when too few can be scheduled"),
    Limit("scheduling.queueName", "queueing by Kueue"),
    Limit("scheduling.topologyKey", "placement by topology"),
    Limit("scheduling.exclusive", "exclusive placement"),
    Limit("scheduling.gang", "gang scheduling"),
)


TORCHRUN_LIMITS = (
    Limit("spares", "torchrun lets every worker train"),
    Limit("failureDetection.heartbeatMilliseconds", "torchrun's own heartbeats are fixed"),
    Limit("failureDetection.timeoutMilliseconds", "torchrun's own heartbeats are fixed"),
    Limit(
        "failureDetection.progressTimeoutSeconds",
        "torchrun notices a hang when a collective times out",
    ),
    Limit(
        "failureDetection.stragglerPercent",
        "torchrun does not measure how long each rank computes",
    ),
    Limit(
        "failureDetection.stragglerAction",
        "torchrun does not measure how long each rank computes",
    ),
    Limit(
        "restartPolicy.maxHangRestarts",
        "torchrun cannot distinguish a hang from another failure",
    ),
    Limit("checkpoint.intervalSeconds", "the script decides when it saves"),
    Limit("checkpoint.intervalSteps", "the script decides when it saves"),
    Limit("checkpoint.keepLast", "the script decides what it keeps"),
    Limit("checkpoint.keepEverySteps", "the script decides what it keeps"),
    Limit("checkpoint.onTermination", "the script decides whether it saves at the end"),
    Limit(
        "checkpoint.memorySnapshotSteps",
        "torchrun keeps no state of a script in memory",
        also=(0,),
    ),
    Limit("resume.policy", "the script decides what it starts from"),
    Limit("metrics.rankDetail", "torchrun's pods export no series"),
)
"""Fields that have no meaning for a job of stock torchrun."""


TORCHRUN_POD_LIMITS = (
    Limit(
        "progressPattern",
        "nothing reads what torchrun's pods write; `regroup run` does, and launcher regroup",
    ),
)
"""The same for pods of stock torchrun only: local processes may ask for it."""


def _without_meaning(spec: TrainingJobSpec, on_cluster: bool) -> list[str]:
    """What a job with launcher torchrun must not ask for, and what it lacks."""
    if not spec.uses_torchrun:
        return []
    limits = (*TORCHRUN_LIMITS, *(TORCHRUN_POD_LIMITS if on_cluster else ()))
    found = [f"{sentence}: leave it out" for sentence in _beyond(limits, spec)]
    group = spec.elastic_policy.replica_group_size if spec.elastic_policy else None
    if group not in (None, 1):
        found.append(
            f"spec.elasticPolicy.replicaGroupSize={group} (torchrun takes any number of workers)"
        )
    if spec.trainer is not None:
        found.append(
            "spec.trainer (the built-in trainer's configuration; torchrun runs a script of your "
            "own)"
        )
    if (problem := _script_problem(spec)) is not None:
        found.append(problem)
    return [f"not possible with launcher torchrun: {sentence}" for sentence in found]


def _script_problem(spec: TrainingJobSpec) -> str | None:
    try:
        script = user_script(spec.template)
    except ValueError as error:
        return str(error)
    return (
        None
        if script
        else f"{COMMAND_FIELD} is missing (give a script, such as [python, train.py])"
    )


def unsupported(spec: TrainingJobSpec, on_cluster: bool = True) -> list[str]:
    """One sentence per field that asks for what is not supported on a cluster, or in a local run;
    empty when all is.
    """
    return [
        *(f"not supported yet: {sentence}" for sentence in _beyond(LIMITS, spec)),
        *_without_meaning(spec, on_cluster),
    ]


def _beyond(limits: tuple[Limit, ...], spec: TrainingJobSpec) -> list[str]:
    found = []
    for limit in limits:
        value, default = _value_and_default(spec, limit.path)
        if value not in (default, *limit.also):
            found.append(f"spec.{limit.path}={_shown(value)} ({limit.meaning})")
    return found


def _value_and_default(spec: TrainingJobSpec, path: str) -> tuple[object, object]:
    """What a field has, and its default. A section that is absent has its defaults."""
    node: Any = spec
    default: Any = _DEFAULTS
    for part in path.split("."):
        name = _attribute(default, part)
        node, default = getattr(node, name), getattr(default, name)
        node = default if node is None else node
    return node, default


def _attribute(model: BaseModel, alias: str) -> str:
    return next(name for name, field in type(model).model_fields.items() if field.alias == alias)


def _shown(value: object) -> str:
    return str(len(value)) + " rules" if isinstance(value, tuple) else str(value)
