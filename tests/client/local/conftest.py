"""Local runs of these tests start warm workers: what is tested comes after their start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.disks import mounted


@pytest.fixture(autouse=True)
def _warm(warm_workers: None) -> None:
    """For every test of this folder. What a module's fixture runs is started cold."""


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A small file system with the folder `job`; what processes log is not there. Needs root."""
    (tmp_path / "logs").mkdir()
    with mounted(tmp_path / "volume", "24m") as volume:
        (volume / "job").mkdir()
        (volume / "job/logs").symlink_to(tmp_path / "logs")
        yield volume
