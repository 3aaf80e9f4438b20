"""Images with their classes."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from regroup_trainer.data import images, load
from regroup_trainer.errors import ConfigurationError, DataError
from regroup_trainer.protocol.config import TrainConfig
from tests.support.samples import config, dataset


@pytest.mark.parametrize(("name", "count", "side"), [("digits", 1797, 8), ("mnist5k", 5000, 28)])
def test_images_have_one_class_of_ten(tmp_path: Path, name: str, count: int, side: int) -> None:
    data = dataset(config("images", name=name, held_out_percent=10), 2, tmp_path, evaluate=True)
    assert (data.samples, data.held_out_samples) == (count * 9 // 10, count - count * 9 // 10)
    assert (data.targets_per_sample, data.classes) == (1, 10)
    arrays = data.read_training(np.arange(data.samples))
    assert arrays.inputs.shape == (data.samples, 1, side, side)
    assert (arrays.inputs.min(), arrays.inputs.max()) == (-1.0, 1.0)
    assert arrays.targets.shape == (data.samples,)


def test_all_classes_are_held_out(tmp_path: Path) -> None:
    data = dataset(config("images", held_out_percent=10), 2, tmp_path, evaluate=True)
    counts = Counter(data.read_held_out(np.arange(data.held_out_samples)).targets.tolist())
    assert set(counts) == set(range(10))
    assert max(counts.values()) < 2 * min(counts.values())


def test_a_digit_looks_like_itself(tmp_path: Path) -> None:
    data = dataset(config("images", held_out_percent=50), 2, tmp_path)
    training, held_out = data.read_training(np.arange(800)), data.read_held_out(np.arange(200))
    distances = ((held_out.inputs[:, None] - training.inputs[None]) ** 2).sum((2, 3, 4))
    nearest = training.targets[distances.argmin(1)]
    assert (nearest == held_out.targets).mean() > 0.95


def test_nothing_held_out_is_an_error_where_it_is_needed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.heldOutPercent: 0 % keeps no image for evaluation"):
        dataset(config("images"), 2, tmp_path, evaluate=True)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "find_spec", lambda name: importlib.util.find_spec(f"no_{name}"))
    with pytest.raises(
        ConfigurationError, match=r"data\.name: 'digits' comes with the package scikit-learn"
    ):
        dataset(config("images"), 2, tmp_path)


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    wrong = TrainConfig.model_validate({"data": {"source": "images"}, "model": {"name": "gpt"}})
    with pytest.raises(
        ConfigurationError, match=r"data\.source: 'images' does not fit model\.name 'gpt'"
    ):
        load(wrong, tmp_path)
