"""Finds and removes the mounts below a folder that a node or a cluster leaves behind."""

from __future__ import annotations

import shutil
from pathlib import Path

from devcluster.processes import run


def below(folder: Path) -> list[Path]:
    """The mount points below a folder, the innermost first."""
    found: list[Path] = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        mount_point = Path(line.split()[1].encode().decode("unicode_escape"))
        if mount_point.is_relative_to(folder):
            found.append(mount_point)
    return found[::-1]


def clear(folder: Path) -> None:
    """Unmount everything below a folder. Lazily, since a process may still use it."""
    while points := below(folder):
        run(["umount", "--lazy", *points])


def delete(folder: Path) -> None:
    """Unmount everything below a folder and delete it."""
    clear(folder)
    if folder.exists():
        shutil.rmtree(folder)
