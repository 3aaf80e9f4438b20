"""Files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from regroup_trainer.system import durable


def test_a_file_is_created_once(tmp_path: Path) -> None:
    durable.create(tmp_path / "a", "first")
    with pytest.raises(FileExistsError):
        durable.create(tmp_path / "a", "second")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "first"}


def test_a_directory_is_never_renamed_over_another(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    with pytest.raises(OSError, match="not empty"):
        durable.rename(tmp_path / "new", tmp_path / "old")
