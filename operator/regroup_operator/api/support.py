"""What is not implemented yet: one table, for the operator and for offline checks of a file.

A field must not be accepted and then ignored. Each row names a field of spec, the values that are
honoured, and what another value would ask for. A job with another value gets the condition
`Ready=False, reason=NotSupported`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.user_script import COMMAND_FIELD, user_script


@dataclass(frozen=True)
class Limit:
    """One row of the table."""

    path: str
    """Below spec, names as in YAML."""
    accepted: tuple[object, ...]
    """The values that are honoured. None stands for an absent field."""
    meaning: str
    """What the field would do."""


LIMITS = (
    Limit(
        "elasticPolicy.scaleUpPolicy",
        (None, "WhenCapacity"),
        "holding back lost workers' replacements",
    ),
    Limit("elasticPolicy.scaleUpDelaySeconds", (None, 30), "a delay before growing"),
    Limit("elasticPolicy.minSecondsBetweenResizes", (None, 0), "a pause between resizes"),
    Limit("restartPolicy.windowSeconds", (None,), "refilling the restart budget"),
    Limit("failurePolicy.rules", ((),), "failure rules of one's own"),
    Limit("checkpoint.retentionPolicy", ("Retain",), "deleting checkpoints with the job"),
    Limit("resume.policy", ("Latest", "Never", "Step"), "starting from another job's checkpoint"),
    Limit("startupDeadlineSeconds", (None,), "giving pods back when too few can be scheduled"),
    Limit("scheduling.queueName", (None,), "queueing by Kueue"),
    Limit("scheduling.topologyKey", (None,), "placement by topology"),
    Limit("scheduling.exclusive", (False,), "exclusive placement"),
    Limit("scheduling.gang", ("None",), "gang scheduling"),
)


TORCHRUN_LIMITS = (
    Limit("spares", (0,), "torchrun lets every worker train"),
    Limit("failureDetection.heartbeatMilliseconds", (500,), "torchrun's own heartbeats are fixed"),
    Limit("failureDetection.timeoutMilliseconds", (2000,), "torchrun's own heartbeats are fixed"),
    Limit(
        "failureDetection.progressTimeoutSeconds",
        (0,),
        "torchrun notices a hang when a collective times out",
    ),
    Limit(
        "failureDetection.stragglerPercent",
        (30,),
        "torchrun does not measure how long each rank computes",
    ),
    Limit(
        "failureDetection.stragglerAction",
        ("Report",),
        "torchrun does not measure how long each rank computes",
    ),
    Limit(
        "restartPolicy.maxHangRestarts",
        (3,),
        "torchrun cannot distinguish a hang from another failure",
    ),
    Limit("checkpoint.intervalSeconds", (None,), "the script decides when it saves"),
    Limit("checkpoint.intervalSteps", (None,), "the script decides when it saves"),
    Limit("checkpoint.keepLast", (3,), "the script decides what it keeps"),
    Limit("checkpoint.keepEverySteps", (None,), "the script decides what it keeps"),
    Limit("checkpoint.onTermination", ("Save",), "the script decides whether it saves at the end"),
    Limit(
        "checkpoint.memorySnapshotSteps", (None, 0), "torchrun keeps no state of a script in memory"
    ),
    Limit("resume.policy", ("Latest",), "the script decides what it starts from"),
    Limit("metrics.rankDetail", ("auto",), "torchrun's pods export no series"),
)
"""Fields that have no meaning for a job of stock torchrun, with the values that are accepted
nevertheless.
"""


TORCHRUN_POD_LIMITS = (
    Limit(
        "progressPattern",
        (None,),
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
    return [
        f"spec.{limit.path}={_shown(value)} ({limit.meaning})"
        for limit in limits
        if (value := _value(spec, limit.path)) not in limit.accepted
    ]


def _value(spec: TrainingJobSpec, path: str) -> object:
    node: Any = spec
    for part in path.split("."):
        if node is None:
            return None
        node = getattr(node, _attribute(node, part))
    return node


def _attribute(model: BaseModel, alias: str) -> str:
    return next(name for name, field in type(model).model_fields.items() if field.alias == alias)


def _shown(value: object) -> str:
    return str(len(value)) + " rules" if isinstance(value, tuple) else str(value)
