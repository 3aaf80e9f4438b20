"""The variables that follow from a job, as a script finds them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from regroup_trainer.coordinator.formation import make_record
from regroup_trainer.protocol.generation import Assignment, GenerationNumber
from regroup_trainer.rank.script import environment
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_hello

MINE = {
    "OMP_NUM_THREADS": "3",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "GLOO_SOCKET_IFNAME": "eth7",
    "ROLE_NAME": "trainer",
}


def variables(
    ranks: int = 1,
    failures: int = 0,
    max_restarts: int = 10,
    given: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, str]]:
    """What the ranks of two workers find, where `given` is the environment of their workers."""
    hellos = tuple(make_hello(n, ranks=ranks, store=f"127.0.0.1:{3000 + n}") for n in range(2))
    desired = make_desired(script=("train.py",), max_restarts=max_restarts)
    record = make_record(
        GenerationNumber(1, 3), hellos, desired, ("Nothing", "test"), failures=failures
    )
    return [
        environment(
            Assignment(record=record, rank=rank, local_rank=rank % ranks, channel="/c"), given, 29
        )
        for rank in range(2 * ranks)
    ]


def test_threads_are_the_users_or_follow_the_rule_of_torchrun() -> None:
    assert all("OMP_NUM_THREADS" not in found for found in variables(ranks=1))
    assert all(found["OMP_NUM_THREADS"] == "1" for found in variables(ranks=2))


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_the_user_has_set_stays(ranks: int) -> None:
    for found in variables(ranks, given=MINE):
        assert {name: found[name] for name in MINE} == MINE


def test_the_count_of_restarts_is_that_of_the_generation_on_all_ranks() -> None:
    found = variables(ranks=2, failures=4)
    assert [each["TORCHELASTIC_RESTART_COUNT"] for each in found] == ["4"] * 4


@pytest.mark.parametrize(("budget", "shown"), [(10, "10"), (0, "0"), (-1, "1000000")])
def test_an_unlimited_budget_of_restarts_reads_a_million(budget: int, shown: str) -> None:
    for found in variables(max_restarts=budget):
        assert found["TORCHELASTIC_MAX_RESTARTS"] == shown


def test_every_rank_finds_its_place_among_workers_and_ranks() -> None:
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    found = [tuple(each[name] for name in names) for each in variables(ranks=2)]
    assert found == [
        ("0", "0", "0", "0", "4", "2"),
        ("1", "1", "0", "1", "4", "2"),
        ("2", "0", "1", "2", "4", "2"),
        ("3", "1", "1", "3", "4", "2"),
    ]
