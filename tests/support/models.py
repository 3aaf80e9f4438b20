"""Models with allocated parameters."""

from __future__ import annotations

from typing import Any

import torch

from regroup_trainer import models
from regroup_trainer.models import Model
from regroup_trainer.models.initialize import initialize
from regroup_trainer.protocol.config import ModelConfig


def built(
    name: str = "gpt", preset: str | None = "tiny", classes: int = 256, seed: int = 0, **fields: Any
) -> Model:
    """A model that is allocated on the CPU and initialised."""
    config = ModelConfig(name=name, preset=preset, **fields)  # type: ignore[arg-type]
    model = models.build(config, classes)
    model.to_empty(device="cpu")
    initialize(model, model, seed)
    return model


def tokens(shape: tuple[int, ...], below: int = 256, seed: int = 0) -> torch.Tensor:
    """Random tokens."""
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))
