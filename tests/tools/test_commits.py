"""The files of a former commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.commits import unpack


def git(folder: Path, *command: str) -> None:
    own = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *own, *command], cwd=folder, check=True, capture_output=True)


def test_the_files_of_a_commit_are_unpacked_whatever_is_there_now(tmp_path: Path) -> None:
    repository, folder = tmp_path / "repository", tmp_path / "former"
    (repository / "bench").mkdir(parents=True)
    (repository / "bench" / "recovery.py").write_text("former")
    git(repository, "init", "--quiet")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "former")
    (repository / "bench" / "recovery.py").write_text("now")
    unpack(repository, "HEAD", folder)
    assert (folder / "bench" / "recovery.py").read_text() == "former"
