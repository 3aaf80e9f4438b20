"""Hugging Face datasets on disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regroup_trainer.errors import ConfigurationError, DataError
from tests.support.optional_packages import needs_bpe
from tests.support.samples import config, dataset, inputs, rows


def saved(path: Path, **columns: list[Any]) -> Path:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns).save_to_disk(str(path))
    return path


def test_texts_are_joined_by_marks_of_their_ends(tmp_path: Path) -> None:
    path = saved(tmp_path / "set", text=["ab", "c"], other=[1, 2])
    data = dataset(config("huggingface", path), 4, tmp_path)
    assert inputs(data, 0) == [list(b"ab\0c")]
    assert data.classes == 256


@needs_bpe
def test_texts_may_be_tokenised(tmp_path: Path) -> None:
    path = saved(tmp_path / "set", text=["hello world"] * 3)
    data = dataset(config("huggingface", path, tokenizer="cl100k"), 3, tmp_path)
    assert inputs(data, 0, 1) == [[15339, 1917, 100257]] * 2


def test_lists_of_integers_are_tokens(tmp_path: Path) -> None:
    path = saved(tmp_path / "set", input_ids=[[1, 2, 3], [70000, 5, 6]])
    data = dataset(config("huggingface", path, column="input_ids", classes=100277), 2, tmp_path)
    assert inputs(data, 0, 1) == [[1, 2], [3, 70000]]


def test_a_restart_does_not_need_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "set", text=["abcdefg"])
    first = dataset(config("huggingface", path), 2, tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    again = dataset(config("huggingface", path), 2, tmp_path)
    assert (again.fingerprint, inputs(again, 0, 1)) == (first.fingerprint, inputs(first, 0, 1))
    with pytest.raises(
        ConfigurationError,
        match=r"'huggingface' needs the package datasets, which this image lacks",
    ):
        dataset(config("huggingface", path), 2, tmp_path / "another")


def test_a_split_of_its_own_may_be_held_out(tmp_path: Path) -> None:
    training, apart = saved(tmp_path / "a", text=["x" * 9]), saved(tmp_path / "b", text=["y" * 9])
    data = dataset(
        config("huggingface", training, held_out_paths=(str(apart),)), 4, tmp_path, evaluate=True
    )
    assert rows(data.read_held_out(np.array([0])).inputs) == [[ord("y")] * 4]


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    path = saved(tmp_path / "set", body=["a"], title=["b"])
    with pytest.raises(
        DataError, match=r"data\.column: .* has no column 'text': use one of body, title"
    ):
        dataset(config("huggingface", path), 2, tmp_path)


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ([1.5, 2.5], "holds neither strings nor lists of integers"),
        ([[1, -1]], r"holds tokens from -1 to 1, not below 256"),
        (
            [[1, 300]],
            r"holds tokens from 1 to 300, not below 256: give the size of their vocabulary",
        ),
    ],
)
def test_a_column_of_something_else_is_refused(
    tmp_path: Path, column: list[Any], problem: str
) -> None:
    path = saved(tmp_path / "set", text=column)
    with pytest.raises(DataError, match=problem):
        dataset(config("huggingface", path), 2, tmp_path)


def test_a_folder_that_is_no_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"data\.paths: .* is no dataset on disk .*: use Dataset\.save_to_disk"
    ):
        dataset(config("huggingface", tmp_path), 2, tmp_path)
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(DataError, match=r"no dataset on disk .*: name one split of it"):
        dataset(config("huggingface", tmp_path), 2, tmp_path)
