"""The times of a campaign."""

from __future__ import annotations

import pytest

from soak.campaign import SETTLED_SECONDS, rest_of_pause


@pytest.mark.parametrize(
    ("pause", "whole", "rest"), [(12.0, True, 8.0), (1.0, True, 0.0), (1.0, False, 1.0)]
)
def test_the_time_in_which_jobs_were_seen_whole_is_part_of_the_pause_before_a_fault(
    pause: float, whole: bool, rest: float
) -> None:
    assert SETTLED_SECONDS == 4.0
    assert rest_of_pause(pause, whole) == rest
