"""How many threads the ranks of a local run get."""

from __future__ import annotations

import pytest

from regroup.local.local_run import threads_of_workers
from tests.support.coordinator_simulation import make_desired


@pytest.mark.parametrize(("replicas", "ranks", "threads"), [(1, 1, 8), (2, 2, 2), (16, 1, 1)])
def test_the_built_in_trainer_shares_the_cpus(replicas: int, ranks: int, threads: int) -> None:
    assert threads_of_workers(make_desired(replicas=replicas), ranks, 8) == threads


@pytest.mark.parametrize(("replicas", "ranks", "threads"), [(1, 1, None), (2, 1, None), (2, 2, 1)])
def test_a_script_has_the_threads_of_torchrun(
    replicas: int, ranks: int, threads: int | None
) -> None:
    desired = make_desired(replicas=replicas, script=("train.py",))
    assert threads_of_workers(desired, ranks, 8) == threads
