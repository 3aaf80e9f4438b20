"""The cache folder is there when it is used, or a sentence says why it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cache import cache_folder
from tools.progress import ToolError
from tools.pythons import ROOT


def test_the_folder_is_made_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROUP_CACHE", str(tmp_path / "a" / "b"))
    assert cache_folder() == tmp_path / "a" / "b"
    assert cache_folder().is_dir()


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROUP_CACHE", str(tmp_path))
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ToolError, match=rf"{tmp_path}: Permission denied .*set REGROUP_CACHE"):
        cache_folder()


def test_make_venv_says_in_one_line_that_the_cache_cannot_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "tools.venv"],
        cwd=ROOT,
        env={**os.environ, "REGROUP_CACHE": str(file)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"error: cannot use the cache {file}: File exists (downloads and builds are kept there): "
        "set REGROUP_CACHE to a folder that this user can write\n"
    )
