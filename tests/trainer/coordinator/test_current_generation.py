"""What a coordinator knows of the generation that trains."""

from __future__ import annotations

from regroup_trainer.coordinator.current_generation import CurrentGeneration
from tests.support.generations import make_generation


def test_a_rank_of_a_member_that_is_back_is_waited_for_again() -> None:
    current = CurrentGeneration(make_generation(1, 1), begun=0.0)
    assert current.rank_inside({"uid-1"}) == 1
    current.on_enrolled("uid-0")
    assert current.rank_inside({"uid-0", "uid-1"}) == 0
