"""The order of the whole suite: quick tests first, then a real API server, then a real cluster."""

from __future__ import annotations

import pytest

_STAGES = ("apiserver", "cluster")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by what they need; within a stage they stay as they were found."""
    items.sort(key=_stage)


def _stage(item: pytest.Item) -> int:
    return max((_STAGES.index(name) + 1 for name in _STAGES if item.get_closest_marker(name)), default=0)
