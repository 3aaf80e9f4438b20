"""Samples: their sources, their order, and how they are read."""

from __future__ import annotations

from pathlib import Path

from regroup_trainer.data.dataset import Arrays, Dataset
from regroup_trainer.data.files import unreadable
from regroup_trainer.data.huggingface import load_huggingface
from regroup_trainer.data.images import load_images
from regroup_trainer.data.sequences import Corpus, Sequences, require_samples
from regroup_trainer.data.synthetic import load_synthetic
from regroup_trainer.data.text import load_text
from regroup_trainer.data.token_files import load_tokens
from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.config import DataConfig, TrainConfig
from regroup_trainer.system.volume_errors import may_pass

__all__ = ["Arrays", "Dataset", "load"]


def load(config: TrainConfig, directory: Path) -> Dataset:
    """Open the samples that the configuration names. What is computed from them is kept in the
    job's `directory`.

    Raises DataError, ConfigurationError or StorageError, with the field and what to do; OSError
    where a volume does not give them now.
    """
    try:
        return _opened(config, directory)
    except OSError as error:
        if may_pass(error):
            raise
        raise unreadable(error) from error


def _opened(config: TrainConfig, directory: Path) -> Dataset:
    data, length, evaluate = (
        config.data,
        config.training.sequence_length,
        config.evaluation.every_steps > 0,
    )
    if (data.source == "images") != (config.model.name == "resnet"):
        problem = f"data.source: {data.source!r} does not fit model.name {config.model.name!r}"
        raise ConfigurationError(f"{problem}: a resnet takes images, all other models take tokens")
    if data.source == "images":
        return load_images(data, evaluate)
    if data.source == "synthetic":
        return load_synthetic(data, length)
    return require_samples(Sequences(_corpus(data, directory), length), data, evaluate)


def _corpus(data: DataConfig, directory: Path) -> Corpus:
    if data.source == "tokens":
        return load_tokens(data)
    return (
        load_huggingface(data, directory)
        if data.source == "huggingface"
        else load_text(data, directory)
    )
