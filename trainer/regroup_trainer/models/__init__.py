"""The models that the built-in trainer can train."""

from __future__ import annotations

from collections.abc import Callable

import torch

from regroup_trainer.models.gpt import GPT
from regroup_trainer.models.llama import Llama
from regroup_trainer.models.model import Model
from regroup_trainer.models.resnet import ResNet
from regroup_trainer.protocol.config import ModelConfig

__all__ = ["MODELS", "GPT", "Llama", "Model", "ResNet", "build"]

MODELS: dict[str, Callable[[ModelConfig, int], Model]] = {
    "gpt": GPT,
    "llama": Llama,
    "resnet": ResNet,
}
"""model.name -> constructor, given the number of classes."""


def build(config: ModelConfig, classes: int) -> Model:
    """The model on the meta device, so that only `initialize` allocates memory.

    `classes` is the size of the vocabulary, or the number of kinds of images.
    """
    with torch.device("meta"):
        return MODELS[config.name](config, classes)
