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
GROWTH_MIB = 2.0
"""Of a hundred jobs. A leak of 20 kB a job would be found."""


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
    assert max(sizes) - max(sizes[:WARM]) <= GROWTH_MIB, shown(sizes)


def shown(sizes: Sequence[float]) -> str:
    """In a line."""
    return ", ".join(f"{size:.1f}" for size in sizes)
