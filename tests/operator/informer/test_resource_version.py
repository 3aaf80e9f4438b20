"""Which versions can be compared."""

from __future__ import annotations

from typing import Any

import pytest

from regroup_operator.informer.resource_version import parse_version


def test_versions_compare_as_numbers_however_long_they_are() -> None:
    assert parse_version("9") < parse_version("10") < parse_version("1" + "0" * 30)


@pytest.mark.parametrize("text", ["", "0", "07", "-1", "1.5", "1e3", "1" * 32, "abc", None, 7, "٣"])
def test_what_is_no_positive_number_is_refused_by_its_value(text: Any) -> None:
    with pytest.raises(ValueError, match="a positive number, but"):
        parse_version(text)
