"""The chart's monitors and rules, at a real API server with the definitions of the Prometheus
operator.
"""

from __future__ import annotations

from collections.abc import Iterator

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
STRICT = "fieldValidation=Strict"


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """An API server with the three definitions."""
    with ApiServer() as server:
        api = Api(server.kubeconfig)
        apply(api, "create", "namespace", RELEASE)
        for plural in KINDS.values():
            apply(api, "create", "-f", str(definition(plural)))
        wait_until(
            "the three kinds",
            lambda: all(serves(api, plural) for plural in KINDS.values()),
            seconds=60,
        )
        yield server


def serves(api: Api, plural: str) -> bool:
    """Whether the API server has taken up a definition."""
    return api.request("GET", f"{PATH}/{plural}").status == 200


def rendered(server: ApiServer) -> dict[str, Json]:
    """What the chart makes for the Prometheus operator, by kind."""
    settings = ["metrics.prometheusRule.gpu=true", "watch.namespaces={team}"]
    settings += [f"metrics.{kind[0].lower()}{kind[1:]}.enabled=true" for kind in KINDS]
    settings += [f"metrics.{kind[0].lower()}{kind[1:]}.labels.release=stack" for kind in KINDS]
    flags = [flag for setting in settings for flag in ("--set", setting)]
    chart = (str(ROOT / "charts/regroup"), "--namespace", RELEASE)
    text = run([server.bin / "helm", "template", "regroup", *chart, *flags])
    return {d["kind"]: d for d in yaml.safe_load_all(text) if d and d["kind"] in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_prometheus_operators_definitions_take_what_the_chart_makes(
    server: ApiServer, kind: str
) -> None:
    api, made = Api(server.kubeconfig), rendered(server)[kind]
    assert made["metadata"]["labels"]["release"] == "stack"
    answer = api.request("POST", f"{PATH}/{KINDS[kind]}?{STRICT}", made)
    assert answer.status == 201, answer.message
    made["spec"]["unknown"] = 1
    refused = api.request("POST", f"{PATH}/{KINDS[kind]}?{STRICT}", made)
    assert (refused.status, "unknown field" in refused.message) == (400, True)
