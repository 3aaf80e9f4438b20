"""The operator's replicas are replaced one after the other while a job trains and loses a worker:
as `docs/tasks/upgrade.md` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo import installation as installing
from tests.support.jobs import Job, make_job
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]
WORKERS = 2
OPERATOR = ("deployment", "regroup", "-n", installing.SYSTEM)


def test_a_worker_that_is_lost_while_the_operators_replicas_are_replaced_is_replaced_alone(
    installation: Installation,
) -> None:
    job = installation.start(make_job(replicas=WORKERS, steps=10_000_000))
    job.wait_until_whole_and_saved()
    victim = job.workers()[0]["metadata"]["name"]
    kept, former = starts(job, without=victim), operators(installation)
    assert len(former) == 2

    installation.kubectl("rollout", "restart", *OPERATOR)
    installation.kubectl("delete", "pod", victim, "-n", job.namespace, "--force")
    installation.kubectl("rollout", "status", *OPERATOR, "--timeout=300s", timeout=330)

    def is_whole() -> bool:
        status = job.status()
        ranked = {one["pod"] for one in status["workers"] if "rank" in one}
        return victim not in ranked and len(ranked) == status["worldSize"] == WORKERS

    wait_until("a replacement that trains", is_whole, seconds=240)
    step = job.step()
    wait_until("more steps in the status", lambda: job.step() > step, seconds=180)
    assert not former & operators(installation)
    assert kept <= starts(job)
    assert len(job.workers()) == WORKERS
    assert len(job.losses()) == 1


def starts(job: Job, without: str = "") -> set[tuple[str, int]]:
    """UIDs of its pods, and how often their containers have started again."""
    return {
        (pod["metadata"]["uid"], container["restartCount"])
        for pod in job.pods()
        for container in pod["status"]["containerStatuses"]
        if pod["metadata"]["name"] != without
    }


def operators(installation: Installation) -> set[str]:
    """UIDs of the replicas that are not about to end."""
    where = ("-n", installing.SYSTEM, "-l", "app.kubernetes.io/part-of=regroup")
    pods = installation.kubectl.read("pods", *where)["items"]
    return {pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}
