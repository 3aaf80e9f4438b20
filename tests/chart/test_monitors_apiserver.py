"""The chart's monitors, rules and dashboards, at a real API server with the definitions of the
Prometheus operator and of grafana-operator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devcluster.apiserver import ApiServer
from devcluster.processes import run
from tests.support.kube_api import ROOT, Api, Json
from tests.support.operator_process import RELEASE, apply
from tests.support.prometheus_operator import definition
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

KINDS = {
    "ServiceMonitor": "servicemonitors",
    "PodMonitor": "podmonitors",
    "PrometheusRule": "prometheusrules",
}
PATH = f"/apis/monitoring.coreos.com/v1/namespaces/{RELEASE}"
BOARDS = f"/apis/grafana.integreatly.org/v1beta1/namespaces/{RELEASE}/grafanadashboards"
BOARD = ROOT / "tests/support/grafana_operator/grafanadashboards.yaml"
CHECKSUM = "5f5d94bbe0a01a220cc8ec7b31e98fbdf61677df8a35169572a0efe9057c85b6"
STRICT = "fieldValidation=Strict"


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """An API server with the definitions."""
    with ApiServer() as server:
        api = Api(server.kubeconfig)
        apply(api, "create", "namespace", RELEASE)
        for plural in KINDS.values():
            apply(api, "create", "-f", str(definition(plural)))
        apply(api, "create", "-f", str(board_definition()))
        paths = [*(f"{PATH}/{plural}" for plural in KINDS.values()), BOARDS]
        wait_until("all kinds", lambda: all(serves(api, path) for path in paths), seconds=60)
        yield server


def serves(api: Api, path: str) -> bool:
    """Whether the API server has taken up a definition."""
    return api.request("GET", path).status == 200


def board_definition() -> Path:
    """The definition of GrafanaDashboards, as it was released."""
    assert hashlib.sha256(BOARD.read_bytes()).hexdigest() == CHECKSUM
    return BOARD


def rendered(server: ApiServer) -> list[Json]:
    """All that the chart makes, with what is for other operators."""
    settings = ["metrics.prometheusRule.gpu=true", "watch.namespaces={team}"]
    settings += ["dashboards.grafanaOperator.enabled=true"]
    settings += [f"metrics.{kind[0].lower()}{kind[1:]}.enabled=true" for kind in KINDS]
    settings += [f"metrics.{kind[0].lower()}{kind[1:]}.labels.release=stack" for kind in KINDS]
    flags = [flag for setting in settings for flag in ("--set", setting)]
    chart = (str(ROOT / "charts/regroup"), "--namespace", RELEASE)
    text = run([server.bin / "helm", "template", "regroup", *chart, *flags])
    return [document for document in yaml.safe_load_all(text) if document]


def assert_taken(api: Api, path: str, made: Json) -> None:
    """The API server takes the object, and would refuse a field that its definition lacks."""
    answer = api.request("POST", f"{path}?{STRICT}", made)
    assert answer.status == 201, answer.message
    made["spec"]["unknown"] = 1
    refused = api.request("POST", f"{path}?{STRICT}", made)
    assert (refused.status, "unknown field" in refused.message) == (400, True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_prometheus_operators_definitions_take_what_the_chart_makes(
    server: ApiServer, kind: str
) -> None:
    (made,) = [document for document in rendered(server) if document["kind"] == kind]
    assert made["metadata"]["labels"]["release"] == "stack"
    assert_taken(Api(server.kubeconfig), f"{PATH}/{KINDS[kind]}", made)


def test_grafana_operators_definition_takes_a_dashboard_for_each_file(server: ApiServer) -> None:
    documents = rendered(server)
    boards = [document for document in documents if document["kind"] == "GrafanaDashboard"]
    (files,) = [
        document["data"]
        for document in documents
        if (document["kind"], document["metadata"]["name"]) == ("ConfigMap", "regroup-dashboards")
    ]
    references = [board["spec"]["configMapRef"] for board in boards]
    assert {one["key"] for one in references} == set(files)
    assert {one["name"] for one in references} == {"regroup-dashboards"}
    for board in boards:
        assert_taken(Api(server.kubeconfig), BOARDS, board)
