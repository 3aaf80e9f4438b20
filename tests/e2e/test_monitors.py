"""A Prometheus that scrapes a cluster as the chart's monitors say has what dashboards ask for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo import dashboard
from demo import installation as installing
from demo.picture.data import Source
from demo.promql import Server, Window
from demo.scraping import scraped
from tests.support.jobs import Job, make_job
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(600)]
ABSENT = {
    "trainingjob_mfu_ratio": "nobody knows the peak of a CPU",
    "trainingjob_evaluation_loss": "it has no data to evaluate with",
    "trainingjob_recovery_seconds": "nothing fails",
    "trainingjob_detection_seconds": "nothing fails",
}
"""What a query asks for -> why a job that trains has none of it."""


def targets(server: Server, namespaces: set[str]) -> set[tuple[str, str]]:
    """Namespace and pod of each target in these namespaces that answers."""
    found = [labels for labels, value in server.instant("up", time.time()) if value == 1]
    return {(one["namespace"], one["pod"]) for one in found if one["namespace"] in namespaces}


def pods(installation: Installation, job: Job) -> set[tuple[str, str]]:
    """Namespace and name of the pods of the operator and of the job."""
    ours = ("-n", installing.SYSTEM, "-l", "app.kubernetes.io/name=regroup-operator")
    found = [*installation.kubectl.read("pods", *ours)["items"], *job.pods()]
    return {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in found}


def queries_without_data(source: Source) -> list[str]:
    """The panels whose queries find nothing, of all dashboards."""
    return [
        f"{name}: {panel['title']}: {target['expr']}"
        for name, build in dashboard.DASHBOARDS.items()
        for panel in build()["panels"]
        for target in panel["targets"]
        if not any(series in target["expr"] for series in ABSENT)
        and not source.server.range(source.expression(target["expr"]), source.window)
    ]


def test_every_query_has_data_of_a_job_that_trains(
    installation: Installation, tmp_path: Path
) -> None:
    with scraped(installation.stage, tmp_path) as server:
        began = time.time()
        job = installation.start(make_job(steps=1_000_000, replicas=2))
        job.wait_for_ranks(2, seconds=120)
        expected = pods(installation, job)
        namespaces = {namespace for namespace, _ in expected}
        wait_until("all targets", lambda: targets(server, namespaces) == expected, seconds=120)
        variables = {"namespace": job.namespace, "trainingjob": job.name}

        def all_have_data() -> bool:
            source = Source(server, Window.of(began, time.time()), variables)
            missing = queries_without_data(source)
            if missing:
                print(*missing, sep="\n")
            return not missing

        wait_until("data for each query", all_have_data, seconds=240, every=2)
        renamed = server.instant('{__name__=~"trainingjob_.+", exported_pod!=""}', time.time())
        assert renamed == []
