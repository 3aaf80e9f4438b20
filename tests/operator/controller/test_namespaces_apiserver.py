"""An operator of fifty namespaces, with the rights that the chart gives it there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from devcluster.apiserver import ApiServer
from tests.support.kube_api import Api, Namespace, install_definition
from tests.support.operator_process import Kubelets, OperatorProcess, installed_operator
from tests.support.running_job import running_job
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver
WATCHED = tuple(f"team{number}" for number in range(50))
KINDS = ("networkpolicies", "poddisruptionbudgets", "pods", "services", "trainingjobs")
"""That the operator watches in each of them."""


@pytest.fixture
def api() -> Iterator[Api]:
    """Of a server on which nobody else has given the operator rights, with all namespaces."""
    with ApiServer() as server:
        api = Api(server.kubeconfig)
        install_definition(api)
        for name in (*WATCHED, "other"):
            Namespace.make(api, name)
        yield api


@pytest.fixture(
    params=[pytest.param("true", marks=pytest.mark.long), "false"],
    ids=["with nodes", "without a right in the cluster"],
)
def operator(request: pytest.FixtureRequest, api: Api, tmp_path: Path) -> Iterator[OperatorProcess]:
    settings = (f"watch.namespaces={json.dumps(WATCHED)}", f"watch.nodes={request.param}")
    operator = installed_operator(api, tmp_path, *settings, "userRoles.enabled=false")
    try:
        operator.start()
        yield operator
    finally:
        operator.end()


def watches(api: Api) -> dict[str, float]:
    """How many watches of single namespaces the API server has, by kind. It watches none of these
    itself.
    """
    text = api.request("GET", "/metrics").message
    families = text_string_to_metric_families(text)
    samples = (sample for family in families for sample in family.samples)
    return {
        sample.labels["resource"]: sample.value
        for sample in samples
        if sample.name == "apiserver_longrunning_requests"
        and (sample.labels["verb"], sample.labels["scope"]) == ("WATCH", "namespace")
        and sample.labels["resource"] in KINDS
    }


def test_jobs_of_its_namespaces_train_and_those_of_others_are_left_alone(
    api: Api, operator: OperatorProcess
) -> None:
    """Nothing that it asks for is refused."""
    other = Namespace(api, "other")
    assert other.create(SMALLEST).status == 201
    with running_job(Namespace(api, WATCHED[0])), running_job(Namespace(api, WATCHED[-1])):
        assert "status" not in other.read()
        assert not Kubelets(other).pods()
        expected = dict.fromkeys(KINDS, len(WATCHED))
        wait_until("a watch for each kind and namespace", lambda: watches(api) == expected)
    assert operator.total("rest_client_requests_total", code="200") > 0
    assert operator.total("rest_client_requests_total", code="403") == 0
    assert operator.stop() == 0
    log = operator.log.read_text()
    assert "forbidden" not in log.lower()
    assert "Traceback" not in log
