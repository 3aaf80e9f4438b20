"""From which number of ranks on a plan warns of what a start costs, and that there is none."""

from __future__ import annotations

import pytest

from regroup.planning.hardware import GPUS, cluster
from regroup.planning.mesh_cost import MOST_RANKS, WARNED_RANKS, warning

GPU = GPUS["h100-80"]


def test_few_ranks_are_no_warning() -> None:
    assert warning(cluster(GPU, WARNED_RANKS - 1, 1)) == ""


@pytest.mark.parametrize("ranks", [WARNED_RANKS, MOST_RANKS])
def test_many_ranks_are_slow(ranks: int) -> None:
    text = warning(cluster(GPU, ranks, 1))
    assert "about a second for each GB. By formula" in text
    assert "cannot start" not in text


def test_more_ranks_than_meet_in_time_cannot_start() -> None:
    assert (
        "61.6 GB of addresses through the store of rank 0, about a second for each GB. Ranks that "
        "have come have 60 s to connect, so that more than 1,951 ranks cannot start. By formula"
    ) in warning(cluster(GPU, 246, 8))
    assert "cannot start" in warning(cluster(GPU, MOST_RANKS + 1, 1))
