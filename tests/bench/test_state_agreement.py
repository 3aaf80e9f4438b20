"""The benchmark of the agreement measures every figure of its table, and states that are sent."""

from __future__ import annotations

from bench.state_agreement import inventories, measure, plan
from regroup_trainer.recovery.inventory import agree


def test_each_figure_of_the_table_is_measured() -> None:
    assert measure("8", "regroup").keys() == plan(quick=True).units.keys()


def test_half_of_the_ranks_get_the_state() -> None:
    for held in (inventories(4), inventories(4, shards=4), inventories(4, completing=True)):
        agreed = agree(held)
        assert agreed is not None
        assert agreed.receivers == {4, 5, 6, 7}


def test_all_holders_but_one_complete_the_last_step() -> None:
    agreed = agree(inventories(4, completing=True))
    assert agreed is not None
    assert agreed.completing == {1, 2, 3}
