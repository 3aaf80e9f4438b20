"""Models with memory, for the tests of them."""

from __future__ import annotations

from typing import Any

import torch

from regroup_trainer import models
from regroup_trainer.config import ModelConfig
from regroup_trainer.initialize import initialize
from regroup_trainer.models import Model


def built(name: str = "gpt", preset: str | None = "tiny", classes: int = 256, seed: int = 0, **fields: Any) -> Model:
    """Allocated on the CPU and initialised."""
    model = models.build(ModelConfig(name=name, preset=preset, **fields), classes)  # type: ignore[arg-type]
    model.to_empty(device="cpu")
    initialize(model, model, seed)
    return model


def tokens(shape: tuple[int, ...], below: int = 256, seed: int = 0) -> torch.Tensor:
    """Random tokens."""
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))
