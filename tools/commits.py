"""The files of a former commit, from this clone's history."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path


def unpack(repository: Path, commit: str, folder: Path) -> None:
    """The files of a commit. Raises CalledProcessError where the clone does not have it."""
    archive = subprocess.run(
        ["git", "archive", commit], cwd=repository, check=True, stdout=subprocess.PIPE
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
