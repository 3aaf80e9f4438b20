"""The TrainingJob that the flags of `submit` describe. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regroup_operator.api.names import MAIN_CONTAINER
from regroup_operator.api.resource import API_VERSION, KIND, Object


@dataclass(frozen=True)
class JobFlags:
    """What the flags say; None or empty: left out."""

    name: str
    image: str | None = None
    replicas: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    gpus: int | None = None
    claim: str | None = None
    model: str | None = None
    """NAME:PRESET of the built-in trainer."""
    strategy: str | None = None
    steps: int | None = None
    launcher: str | None = None
    command: Sequence[str] = ()


def job_of_flags(flags: JobFlags) -> Object:
    """The object to create. Raises ValueError for flags that do not go together."""
    if bool(flags.model) == bool(flags.command):
        raise ValueError(
            "say what to train: either --model NAME:PRESET, or a command after `--`, as in "
            "`submit gpt --image IMAGE -- python train.py`"
        )
    if flags.command and (flags.steps or flags.strategy):
        raise ValueError("--steps and --strategy belong to --model: give them to your command")
    spec: dict[str, Any] = {
        "launcher": flags.launcher,
        "replicas": flags.replicas,
        "image": flags.image,
        "elasticPolicy": _present(
            {"minReplicas": flags.min_replicas, "maxReplicas": flags.max_replicas}
        ),
        "resources": {"limits": {"nvidia.com/gpu": flags.gpus}} if flags.gpus else None,
        "checkpoint": _checkpoint(flags.claim),
        "trainer": _trainer(flags),
        "template": _template(flags.command),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": flags.name},
        "spec": _present(spec) or {},
    }


def _present(fields: dict[str, Any]) -> dict[str, Any] | None:
    """The fields that have a value; None when none has."""
    return {name: value for name, value in fields.items() if value is not None} or None


def _checkpoint(claim: str | None) -> Object | None:
    return {"storage": {"persistentVolumeClaim": {"claimName": claim}}} if claim else None


def _trainer(flags: JobFlags) -> Object | None:
    if not flags.model:
        return None
    name, _, preset = flags.model.partition(":")
    return _present(
        {
            "model": _present({"name": name, "preset": preset or None}),
            "parallelism": _present({"strategy": flags.strategy}),
            "training": _present({"steps": flags.steps}),
        }
    )


def _template(command: Sequence[str]) -> Object | None:
    if not command:
        return None
    return {"spec": {"containers": [{"name": MAIN_CONTAINER, "command": list(command)}]}}
