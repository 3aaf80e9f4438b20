"""What the configuration may ask for but this trainer cannot do yet: refused by name, never silently ignored."""

from __future__ import annotations

from pydantic.alias_generators import to_camel

from regroup_trainer.config import TrainConfig
from regroup_trainer.errors import ConfigurationError

_ONLY: dict[str, tuple[object, ...]] = {
    "parallelism.strategy": ("ddp", "fsdp"),
    "parallelism.shard_group_size": (None,),
    "parallelism.tensor_parallel": (1,),
    "parallelism.pipeline_parallel": (1,),
    "parallelism.context_parallel": (1,),
    "training.compile": (False,),
    "training.activation_checkpointing": ("none",),
    "training.deterministic": ("rounding",),
}
"""Field -> the values that are honoured."""


def unsupported(config: TrainConfig) -> list[str]:
    """A sentence for each field that asks for too much."""
    problems = []
    for field, honoured in _ONLY.items():
        section, name = field.split(".")
        value = getattr(getattr(config, section), name)
        if value not in honoured:
            choices = " or ".join(repr(choice) for choice in honoured if choice is not None) or "no value"
            problems.append(f"{section}.{to_camel(name)}: {value!r} is not supported yet: use {choices}")
    return problems


def require_supported(config: TrainConfig) -> None:
    """Raises ConfigurationError naming all fields that ask for too much."""
    if problems := unsupported(config):
        raise ConfigurationError("; ".join(problems))
