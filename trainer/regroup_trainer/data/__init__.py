"""Samples: where they come from, under which numbers, and how they are read."""

from __future__ import annotations

from regroup_trainer.config import TrainConfig
from regroup_trainer.data.dataset import Arrays, Dataset
from regroup_trainer.data.text import load_text

__all__ = ["Arrays", "Dataset", "load"]


def load(config: TrainConfig) -> Dataset:
    """Open the samples that the configuration names. Raises DataError naming the field and what to do."""
    return load_text(config.data, config.training.sequence_length, evaluate=config.evaluation.every_steps > 0)
