"""Local runs of these tests start warm workers: what is tested comes after their start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.disks import mounted, mounted_ext4, thaw_disk


@pytest.fixture(autouse=True)
def _warm(warm_workers: None) -> None:
    """For every test of this folder. What a module's fixture runs is started cold."""


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A small file system with the folder `job`; what processes log is not there. Needs root."""
    with mounted(tmp_path / "volume", "24m") as volume:
        _prepare(volume, tmp_path / "logs")
        yield volume


@pytest.fixture
def freezing_volume(tmp_path: Path) -> Iterator[Path]:
    """As `volume`, one that `freeze_disk` can freeze."""
    with mounted_ext4(tmp_path / "volume", 64) as volume:
        _prepare(volume, tmp_path / "logs")
        yield volume
        thaw_disk(volume)


def _prepare(volume: Path, logs: Path) -> None:
    logs.mkdir()
    (volume / "job").mkdir()
    (volume / "job/logs").symlink_to(logs)
