"""Sizes of volumes."""

from __future__ import annotations

import pytest

from devcluster.volumes import bytes_of


def test_binary_units_are_understood() -> None:
    assert bytes_of("64Mi") == 64 * 2**20


@pytest.mark.parametrize("size", ["", "64", "64MB", "-1Mi", "0Gi", "1.5Gi"])
def test_anything_else_is_refused_by_its_value(size: str) -> None:
    with pytest.raises(ValueError, match=f"size '{size}'"):
        bytes_of(size)
