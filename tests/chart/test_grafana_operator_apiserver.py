"""The chart's GrafanaDashboards, at a real API server with grafana-operator's definition."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from devcluster.apiserver import ApiServer
from tests.support.chart import NAMESPACE, Json, render
from tests.support.grafana_operator import definition
from tests.support.kube_api import Api
from tests.support.operator_process import apply
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

PATH = f"/apis/grafana.integreatly.org/v1beta1/namespaces/{NAMESPACE}/grafanadashboards"
STRICT = "fieldValidation=Strict"
SETTINGS = (
    "dashboards.grafanaOperator.enabled=true",
    'dashboards.grafanaOperator.instanceLabels={"dashboards": "grafana", "team": "5"}',
)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """Of an API server with the definition."""
    with ApiServer() as server:
        api = Api(server.kubeconfig)
        apply(api, "create", "namespace", NAMESPACE)
        apply(api, "create", "-f", str(definition()))
        wait_until(
            "the kind GrafanaDashboard", lambda: api.request("GET", PATH).status == 200, seconds=60
        )
        yield api


def rendered() -> list[Json]:
    """What the chart makes for grafana-operator."""
    objects = render(*SETTINGS)
    return [copy.deepcopy(one) for (kind, _), one in objects.items() if kind == "GrafanaDashboard"]


def test_grafana_operators_definition_takes_what_the_chart_makes(api: Api) -> None:
    """Each field is one that it knows, so the API server keeps all of them."""
    made = rendered()
    assert len(made) == 3
    for one in made:
        answer = api.request("POST", f"{PATH}?{STRICT}", one)
        assert answer.status == 201, answer.message
        kept = api.request("GET", f"{PATH}/{one['metadata']['name']}").body["spec"]
        assert one["spec"].items() <= kept.items()


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("spec", "configMap"), {"name": "any"}, "unknown field"),
        (("spec", "configMapRef"), {"name": "any"}, "key"),
        (("spec", "instanceSelector"), "grafana", "instanceSelector"),
    ],
)
def test_it_refuses_what_it_does_not_know(
    api: Api, place: tuple[str, str], value: Json | str, words: str
) -> None:
    """So the test above sees a field that is wrong."""
    made = rendered()[0]
    made["metadata"]["name"] = "wrong"
    made[place[0]][place[1]] = value
    answer = api.request("POST", f"{PATH}?{STRICT}", made)
    assert answer.status in (400, 422)
    assert words in answer.message
