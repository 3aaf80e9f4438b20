"""What no code honours yet: one table, read on every reconcile and by whoever checks a file offline.

A field that is accepted and then ignored is a lie. Each row names a field of spec, the values that are honoured, and
what would be asked for otherwise; a job with another value gets the condition `Ready=False, reason=NotSupported`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from regroup_operator.api import TrainingJobSpec
from regroup_trainer.config import HONOURED


@dataclass(frozen=True)
class Limit:
    """One row of the table."""

    path: str
    """Below spec, names as in YAML."""
    accepted: tuple[object, ...]
    """The values that are honoured; None stands for an absent field."""
    meaning: str
    """What the field would do."""


LIMITS = (
    Limit("spares", (0,), "warm spare workers"),
    Limit("launcher", ("regroup",), "starting ranks with torchrun"),
    Limit("elasticPolicy.replicaGroupSize", (None, 1), "replica groups of several workers"),
    Limit("elasticPolicy.scaleUpPolicy", (None, "WhenCapacity"), "holding back lost workers' replacements"),
    Limit("elasticPolicy.scaleUpDelaySeconds", (None, 30), "a delay before growing"),
    Limit("elasticPolicy.minSecondsBetweenResizes", (None, 0), "a pause between resizes"),
    Limit("failureDetection.progressTimeoutSeconds", (0,), "hang detection"),
    Limit("failureDetection.stragglerPercent", (30,), "straggler detection"),
    Limit("failureDetection.stragglerAction", ("Report",), "replacing stragglers"),
    Limit("restartPolicy.maxInfrastructureRestarts", (-1,), "a budget for infrastructure failures"),
    Limit("restartPolicy.maxHangRestarts", (3,), "a budget for hangs"),
    Limit("restartPolicy.windowSeconds", (None,), "refilling the restart budget"),
    Limit("failurePolicy.rules", ((),), "failure rules of one's own"),
    Limit("checkpoint.memorySnapshotSteps", (10, 0), "choosing the interval of memory snapshots"),
    Limit("checkpoint.retentionPolicy", ("Retain",), "deleting checkpoints with the job"),
    Limit("resume.policy", ("Latest", "Never", "Step"), "starting from another job's checkpoint"),
    Limit("startupDeadlineSeconds", (None,), "giving pods back when too few can be scheduled"),
    Limit("scheduling.queueName", (None,), "queueing by Kueue"),
    Limit("scheduling.topologyKey", (None,), "placement by topology"),
    Limit("scheduling.exclusive", (False,), "exclusive placement"),
    Limit("scheduling.gang", ("None",), "gang scheduling"),
    Limit("metrics.rankDetail", ("auto",), "choosing the detail of rank metrics"),
    *(
        Limit(".".join(("trainer", *map(to_camel, field.split(".")))), (None, *values), meaning)
        for field, (values, meaning) in HONOURED.items()
    ),
)


def _own_command(spec: TrainingJobSpec) -> str | None:
    containers = ((spec.template or {}).get("spec") or {}).get("containers") or []
    main = next((c for c in containers if isinstance(c, dict) and c.get("name") == "trainer"), {})
    given = [key for key in ("command", "args") if key in main]
    return f"spec.template.spec.containers[trainer].{given[0]} (a command of one's own)" if given else None


def _no_trainer(spec: TrainingJobSpec) -> str | None:
    return "a job without spec.trainer (give at least `trainer: {}` for the defaults)" if spec.trainer is None else None


_CHECKS: tuple[Callable[[TrainingJobSpec], str | None], ...] = (_own_command, _no_trainer)


def unsupported(spec: TrainingJobSpec) -> list[str]:
    """One sentence per field that asks for what no code honours yet; empty when all is honoured."""
    found = [
        f"spec.{limit.path}={_shown(value)} ({limit.meaning})"
        for limit in LIMITS
        if (value := _value(spec, limit.path)) not in limit.accepted
    ]
    found += [sentence for check in _CHECKS if (sentence := check(spec))]
    return [f"not supported yet: {sentence}" for sentence in found]


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
