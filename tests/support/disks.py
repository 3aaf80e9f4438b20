"""Small file systems that tests can fill. Needs root."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def mounted(disk: Path, size: str) -> Iterator[Path]:
    """A new folder with a file system in memory of that size, such as `1m`."""
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def fill(hog: Path) -> None:
    """Take all the room that is left on a file system."""
    with hog.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@contextlib.contextmanager
def mounted_ext4(disk: Path, mebibytes: int) -> Iterator[Path]:
    """A new folder with an ext4 of that size, which can be frozen."""
    image = disk.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(mebibytes << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    disk.mkdir()
    subprocess.run(["mount", "-o", "loop", image, disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)
        image.unlink()


def freeze_disk(disk: Path) -> None:
    """Have every write to a file system wait, as to an NFS server that does not answer."""
    subprocess.run(["fsfreeze", "--freeze", disk], check=True)


def thaw_disk(disk: Path) -> None:
    """Let the writes go on. Nothing happens when the file system is not frozen."""
    subprocess.run(["fsfreeze", "--unfreeze", disk], check=False, capture_output=True)


def remount(disk: Path, mode: str) -> None:
    """Make a file system read-only (`ro`) or writable (`rw`)."""
    subprocess.run(["mount", "-o", f"remount,{mode}", disk], check=True)
