"""Text as samples, and what is wrong with text that cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from regroup_trainer.config import DataConfig
from regroup_trainer.data.text import load_text
from regroup_trainer.errors import DataError


def folder_with(path: Path, **files: str) -> Path:
    for name, content in files.items():
        (path / f"{name}.py").write_text(content)
    return path


def config(*paths: Path, held_out_percent: int = 0) -> DataConfig:
    return DataConfig(paths=tuple(map(str, paths)), held_out_percent=held_out_percent)


def test_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder_with(tmp_path, b="second", a="first")
    data = load_text(config(tmp_path), sequence_length=2, evaluate=False)
    assert bytes(data.training) == b"firstsecond"


def test_samples_are_inputs_and_the_bytes_that_follow_them(tmp_path: Path) -> None:
    data = load_text(config(folder_with(tmp_path, a="abcdefg")), sequence_length=3, evaluate=False)
    assert data.samples == 2
    arrays = data.read_training((1, 0))
    assert [bytes(row.astype(np.uint8)) for row in arrays.inputs] == [b"def", b"abc"]
    assert [bytes(row.astype(np.uint8)) for row in arrays.targets] == [b"efg", b"bcd"]


def test_the_held_out_tail_is_not_trained_on(tmp_path: Path) -> None:
    data = load_text(config(folder_with(tmp_path, a="x" * 80 + "y" * 20), held_out_percent=20), 4, evaluate=True)
    assert set(bytes(data.training)) == {ord("x")}
    assert set(bytes(data.held_out)) == {ord("y")}
    assert data.held_out_samples == 4


def test_the_default_text_is_the_standard_library() -> None:
    data = load_text(DataConfig(), sequence_length=128, evaluate=True)
    assert len(data.training) > 5_000_000
    assert data.fingerprint == load_text(DataConfig(), sequence_length=64, evaluate=False).fingerprint


@pytest.mark.parametrize("change", [{"a": "text!"}, {"c": "more"}])
def test_the_fingerprint_tells_changed_text(tmp_path: Path, change: dict[str, str]) -> None:
    before = load_text(config(folder_with(tmp_path, a="text.")), 2, evaluate=False).fingerprint
    assert load_text(config(folder_with(tmp_path, **change)), 2, evaluate=False).fingerprint != before


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.paths: .*/nowhere does not exist on this worker: mount it"):
        load_text(config(tmp_path / "nowhere"), 2, evaluate=False)


def test_a_folder_without_matching_files_names_the_pattern(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.pattern: '\*\.py' matches no file below"):
        load_text(config(tmp_path), 2, evaluate=False)


def test_too_little_text_says_how_much_is_needed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"5 bytes for training are too few for one sample of 129 bytes"):
        load_text(config(folder_with(tmp_path, a="short")), 128, evaluate=False)


def test_too_little_held_out_text_is_an_error_only_where_it_is_needed(tmp_path: Path) -> None:
    folder_with(tmp_path, a="x" * 300)
    load_text(config(tmp_path, held_out_percent=5), 32, evaluate=False)
    with pytest.raises(DataError, match=r"data\.heldOutPercent: 5 % keeps 15 bytes"):
        load_text(config(tmp_path, held_out_percent=5), 32, evaluate=True)


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_read_is_named_with_the_user(tmp_path: Path) -> None:
    (folder_with(tmp_path, a="x" * 300) / "closed").mkdir(mode=0)
    with pytest.raises(DataError, match=rf"closed cannot be read \(Permission denied\): .* user {os.getuid()}"):
        load_text(config(tmp_path), 32, evaluate=False)
