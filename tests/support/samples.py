"""Datasets for tests: opened as the trainer opens them, and read in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regroup_trainer.data import Dataset, load
from regroup_trainer.protocol.config import DataConfig, TrainConfig


def dataset(data: DataConfig, length: int, directory: Path, *, evaluate: bool = False) -> Dataset:
    """Samples of `length` tokens, opened for a job in `directory`."""
    training, evaluation = {"sequence_length": length}, {"every_steps": int(evaluate)}
    sections = {"data": data, "training": training, "evaluation": evaluation}
    model = {"name": "resnet" if data.source == "images" else "gpt"}
    return load(TrainConfig.model_validate({**sections, "model": model}), directory)


def config(source: str, *paths: Path, held_out_percent: int = 0, **fields: Any) -> DataConfig:
    """Nothing held out unless the test says so."""
    values = {
        "source": source,
        "paths": tuple(map(str, paths)),
        "held_out_percent": held_out_percent,
        **fields,
    }
    return DataConfig.model_validate(values)


def inputs(data: Dataset, *ids: int) -> list[list[int]]:
    """The inputs of these training samples, a list each."""
    return rows(data.read_training(np.array(ids)).inputs)


def rows(array: npt.NDArray[Any]) -> list[list[int]]:
    """The rows of an array as lists, which `==` compares."""
    return [list(map(int, row)) for row in array]
