"""Jobs come and go: the operator's memory stays. On a real API server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.coordinated_jobs import CoordinatedJobs, coordinated_jobs
from tests.support.kube_api import Namespace
from tests.support.operator_process import OperatorProcess

pytestmark = [pytest.mark.apiserver, pytest.mark.long]
ROUNDS, AT_ONCE = 14, 10
WARM = 4
"""Rounds in which each path of the program is taken for the first time."""
GROWTH_MIB = 1.0
"""Of fifty jobs. A leak of 20 kB a job would be found."""


def test_a_hundred_jobs_that_come_and_go_leave_nothing_in_memory(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    sizes: list[float] = []

    def come_and_go(jobs: CoordinatedJobs) -> None:
        jobs.start(120)
        jobs.remove_all(120)
        sizes.append(operator.memory_mib())

    with coordinated_jobs(namespace, AT_ONCE) as jobs:
        jobs.remove_all(120)
        for _ in range(ROUNDS):
            come_and_go(jobs)
    print(f"MiB after each {AT_ONCE} jobs: {shown(sizes)}")
    assert steady_growth(sizes[WARM - 1 :]) <= GROWTH_MIB, shown(sizes)


def steady_growth(sizes: Sequence[float]) -> float:
    """In each half. A thread more, or an arena that is taken once, is no leak."""
    middle = len(sizes) // 2
    return min(sizes[middle] - sizes[0], sizes[-1] - sizes[middle])


def shown(sizes: Sequence[float]) -> str:
    """In a line."""
    return ", ".join(f"{size:.1f}" for size in sizes)
