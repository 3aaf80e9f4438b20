"""Which faults follow the last change of the product is asked of git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from soak import product


def git(root: Path, *command: str) -> str:
    identity = ("-c", "user.name=any", "-c", "user.email=any@example.org")
    done = subprocess.run(
        ["git", *identity, *command], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(root: Path, name: str, text: str) -> str:
    """Write a file and commit it."""
    file = root / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", text)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    return tmp_path


def test_a_commit_counts_as_long_as_only_other_files_change(root: Path) -> None:
    first = commit(root, "operator/main.py", "first")
    second = commit(root, "trainer/rank.py", "second")
    third = commit(root, "soak/draw.py", "third")
    assert product.commit(root) == third
    assert [product.is_same(one, root) for one in (first, second, third)] == [False, True, True]
    (root / "trainer" / "rank.py").write_text("not committed")
    assert not product.is_same(third, root)
    assert product.commit(root) == f"{third}-dirty"


@pytest.mark.parametrize("unknown", ["0" * 40, "unknown", "HEAD-dirty"])
def test_a_commit_of_which_nobody_can_tell_counts_as_another(unknown: str, root: Path) -> None:
    commit(root, "operator/main.py", "first")
    assert product.is_same("HEAD", root)
    assert not product.is_same(unknown, root)
