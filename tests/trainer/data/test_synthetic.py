"""Tokens out of a formula."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.samples import config, dataset, inputs


def test_a_sample_follows_from_its_number(tmp_path: Path) -> None:
    data = dataset(config("synthetic", samples=10**9, classes=97), 16, tmp_path)
    assert (data.samples, data.classes, data.targets_per_sample) == (10**9, 97, 16)
    assert inputs(data, 5, 999_999_999) == [*inputs(data, 5), *inputs(data, 999_999_999)]


def test_each_counts_in_strides_of_its_own(tmp_path: Path) -> None:
    data = dataset(config("synthetic", classes=97), 16, tmp_path)
    strides = np.diff(data.read_training(np.arange(50)).inputs, axis=1) % 97
    assert (strides == strides[:, :1]).all()
    assert set(strides[:, 0]) == set(range(1, 9))


def test_held_out_samples_are_others(tmp_path: Path) -> None:
    data = dataset(
        config("synthetic", samples=100, classes=10**6, held_out_percent=10),
        4,
        tmp_path,
        evaluate=True,
    )
    training = {tuple(row) for row in data.read_training(np.arange(100)).inputs}
    held_out = {tuple(row) for row in data.read_held_out(np.arange(data.held_out_samples)).inputs}
    assert len(training) == 100
    assert len(held_out) == 10
    assert not training & held_out
