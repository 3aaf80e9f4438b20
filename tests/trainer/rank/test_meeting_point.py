"""Where the ranks of a script meet."""

from __future__ import annotations

from queue import Queue

import pytest
from torch._C._distributed_c10d import HashStore

from regroup_trainer.rank.meeting_point import MeetingPoint


@pytest.mark.parametrize("rank_0_is_first", [True, False])
def test_ranks_with_a_port_each_find_out(rank_0_is_first: bool) -> None:
    store, refused = HashStore(), Queue[str]()
    points = [MeetingPoint(29500, rank, store, refused.put) for rank in range(2)]
    for point in points if rank_0_is_first else reversed(points):
        point.meet(29500 + point.rank)
        point.meet(1)  # a later group may meet anywhere
    words = "rank 1 meets the others at port 29501, and rank 0 at 29500: leave MASTER_PORT"
    assert refused.get(timeout=30).startswith(words)


def test_ranks_may_meet_at_another_port_than_the_one_that_is_set() -> None:
    store, refused = HashStore(), Queue[str]()
    points = [MeetingPoint(29500, rank, store, refused.put) for rank in range(3)]
    for point in points:
        point.meet(1 if point.rank == 2 else 7)
    assert refused.get(timeout=30).startswith("rank 2 ")
    assert refused.empty()
