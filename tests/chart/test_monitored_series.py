"""What a real Prometheus has of real programs when it scrapes as the chart's monitors say: the
labels by which alerts and dashboards ask.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from demo import dashboard
from demo.history import SERIES
from demo.monitors import KINDS
from demo.prometheus import Prometheus, monitored_by
from demo.promql import Server
from demo.targets import endpoint_targets, pod_targets, write
from regroup_operator.render import workload
from regroup_trainer.protocol.ledger import Ledger
from tests.support import expositions
from tests.support.chart import NAMESPACE, Json, render
from tests.support.exposing_pods import PodProxy, running
from tests.support.promql_text import groupings, matchings, selectors
from tests.support.rendering import SETTINGS, make_valid_job, make_worker
from tests.support.waiting import wait_until

ALERTS = Path(__file__).resolve().parents[2] / "charts/regroup/alerts"
OURS = re.compile(rf"({SERIES})_\w+")
LIES = """
trainingjob_step{namespace="other",trainingjob="theirs",pod="theirs-w0-1"} 7
trainingjob_internal_errors_total{namespace="regroup-system"} 9
up_to_no_good{namespace="other"} 1
"""
"""What a worker adds that wants its series to be those of others."""
Labels = dict[str, str]


def rules() -> Iterator[tuple[str, str]]:
    """The name and the expression of each alert."""
    for file in ALERTS.glob("*.yaml"):
        for group in yaml.safe_load(file.read_text())["groups"]:
            yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])


def panels() -> Iterator[tuple[str, str]]:
    """The name and the expression of each query of the dashboards."""
    for name, build in dashboard.DASHBOARDS.items():
        for panel in build()["panels"]:
            for target in panel["targets"]:
                yield f"{name}: {panel['title']} {target['refId']}", target["expr"]


QUERIES = [pytest.param(expression, id=name) for name, expression in (*rules(), *panels())]


def operator_pod() -> Json:
    """A pod of the chart's Deployment."""
    template = render()["Deployment", "regroup"]["spec"]["template"]
    metadata = {**template["metadata"], "name": "regroup-5d9c-x2x7b", "namespace": NAMESPACE}
    return running({**template, "metadata": metadata}, "198.18.0.1")


def coordinator_pod() -> Json:
    """The coordinator of the job team/gpt."""
    job = make_valid_job()
    pod = workload.coordinator_pod(job, SETTINGS, workload.desired(job, Ledger()), 1, ())
    return running(pod, "198.18.0.2")


def placed(pod: Json) -> tuple[str, str]:
    """Namespace and name."""
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def chart() -> dict[tuple[str, str], Json]:
    """What the chart makes with both monitors."""
    return render("metrics.serviceMonitor.enabled=true", "metrics.podMonitor.enabled=true")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Prometheus that has scraped an operator, a coordinator and a worker that lies."""
    folder = tmp_path_factory.mktemp("monitored")
    operator, coordinator, worker = operator_pod(), coordinator_pod(), make_worker()
    pods = [operator, coordinator, running(worker, "198.18.0.3")]
    texts = (expositions.operator(), expositions.coordinator(), expositions.agent() + LIES)
    services = [one for (kind, _), one in chart().items() if kind == "Service"]
    with PodProxy(dict(zip(map(placed, pods), texts, strict=True))) as proxy:
        write(folder / "pod.json", pod_targets(pods, proxy.route))
        write(folder / "endpoints.json", endpoint_targets(services, pods, proxy.route))
        monitors = [one for (kind, _), one in chart().items() if kind in KINDS]
        prometheus = Prometheus.start(folder, monitored_by(monitors, folder))
        wait_until("a scrape of all", lambda: len(healthy(prometheus.server)) == len(pods))
        yield prometheus.server
        prometheus.stop()


def healthy(server: Server) -> list[Labels]:
    """The targets that answer."""
    return [labels for labels, value in server.instant("up", time.time()) if value == 1]


@pytest.fixture(scope="module")
def series(server: Server) -> list[Labels]:
    """All series of our programs that Prometheus has."""
    found = server.instant(f'{{__name__=~"({SERIES})_.+"}}', time.time())
    return [labels for labels, _ in found]


@pytest.fixture(scope="module")
def labels_of(series: list[Labels]) -> dict[str, set[str]]:
    """Name of a series -> the labels that all of its kind have."""
    found: dict[str, set[str]] = {}
    for one in series:
        name = one["__name__"]
        found[name] = found.get(name, set(one)) & set(one)
    return found


def of(series: list[Labels], pod: str) -> list[Labels]:
    """The series of a pod."""
    chosen = [one for one in series if one["pod"] == pod]
    assert len(chosen) > 5
    return chosen


def test_each_target_is_known_by_its_pod_and_the_monitor(server: Server) -> None:
    shown = {
        (one["namespace"], one["pod"], one["container"], one["endpoint"], one["job"])
        for one in healthy(server)
    }
    assert shown == {
        (NAMESPACE, "regroup-5d9c-x2x7b", "operator", "metrics", "regroup-metrics"),
        ("team", "gpt-c1", "coordinator", "status", "regroup-system/regroup-jobs"),
        ("team", "gpt-w1-4", "trainer", "metrics", "regroup-system/regroup-jobs"),
    }


@pytest.mark.parametrize("pod", ["gpt-c1", "gpt-w1-4"])
def test_series_of_a_job_are_those_of_its_pods(series: list[Labels], pod: str) -> None:
    found = of(series, pod)
    assert {(one["namespace"], one["trainingjob"]) for one in found} == {("team", "gpt")}


def test_series_of_the_operator_keep_the_jobs_that_they_are_about(series: list[Labels]) -> None:
    jobs = {(one["namespace"], one.get("trainingjob")) for one in of(series, "regroup-5d9c-x2x7b")}
    assert jobs == {(NAMESPACE, None), ("default", "gpt")}


def test_no_series_of_ours_is_renamed(series: list[Labels]) -> None:
    renamed = [one for one in series if any(label.startswith("exported_") for label in one)]
    assert [(one["__name__"], one["exported_pod"]) for one in renamed] == [
        ("trainingjob_step", "theirs-w0-1")
    ], "of the lies alone, since no program of ours has a label `pod`"


def test_a_worker_has_no_series_but_those_of_its_job(server: Server, series: list[Labels]) -> None:
    assert not server.instant("up_to_no_good", time.time())
    lied = [one for one in series if one["__name__"] == "trainingjob_internal_errors_total"]
    assert {one["namespace"] for one in lied} == {NAMESPACE, "team"}


@pytest.mark.parametrize("expression", QUERIES)
def test_a_query_selects_by_labels_that_the_series_have(
    labels_of: dict[str, set[str]], expression: str
) -> None:
    for one in selectors(expression, OURS):
        assert one.name in labels_of, f"nothing exports {one.name}"
        assert one.labels <= labels_of[one.name], one


@pytest.mark.parametrize("expression", QUERIES)
def test_a_query_groups_by_labels_that_the_series_have(
    labels_of: dict[str, set[str]], expression: str
) -> None:
    if "DCGM" in expression:
        return  # series of others, whose labels it renames
    matched = ((labels, expression) for labels in matchings(expression))
    # What is right of `and` chooses, and has no part in the result.
    grouped = (
        (one.labels, re.split(r"\b(?:and|unless)\b", one.body)[0]) for one in groupings(expression)
    )
    for labels, body in itertools.chain(matched, grouped):
        lacking: dict[str, set[str]] = defaultdict(set)
        for one in selectors(body, OURS):
            lacking[one.name] |= labels - labels_of[one.name]
        assert not any(lacking.values()), dict(lacking)


def test_the_queries_name_series(labels_of: dict[str, set[str]]) -> None:
    asked = {one.name for case in QUERIES for one in selectors(str(case.values[0]), OURS)}
    assert len(asked) > 40
    assert asked <= set(labels_of)
