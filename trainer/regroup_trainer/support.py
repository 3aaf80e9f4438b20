"""What the configuration may ask for but this trainer cannot do yet: refused by name, never silently ignored."""

from __future__ import annotations

from pydantic.alias_generators import to_camel

from regroup_trainer.config import HONOURED, TrainConfig
from regroup_trainer.errors import ConfigurationError


def unsupported(config: TrainConfig) -> list[str]:
    """A sentence for each field that asks for too much."""
    problems = []
    for field, (honoured, _) in HONOURED.items():
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
