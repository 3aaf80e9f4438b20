"""Local runs of these tests start warm workers: what is tested comes after their start."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _warm(warm_workers: None) -> None:
    """For every test of this folder. What a module's fixture runs is started cold."""
