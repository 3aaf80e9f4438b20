"""A real API server with the TrainingJob definition, for all tests of the operator; a namespace for
each test.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import yaml

from devcluster.apiserver import ApiServer
from regroup_operator.api.resource import API_VERSION, PLURAL
from tests.support.kube_api import ROOT, Api, Namespace
from tests.support.waiting import wait_until


@pytest.fixture(scope="session")
def api() -> Iterator[Api]:
    """The API server with our definition."""
    with ApiServer() as server:
        api = Api(server.kubeconfig)
        crd = yaml.safe_load((ROOT / "manifests/crd.yaml").read_text())
        answer = api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        assert answer.status == 201, answer.message
        wait_until(
            "the TrainingJob API",
            lambda: api.request("GET", f"/apis/{API_VERSION}/{PLURAL}").status == 200,
        )
        yield api


_numbers = itertools.count(1)


@pytest.fixture
def namespace(api: Api) -> Namespace:
    """A fresh namespace."""
    name = f"test-{next(_numbers)}"
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    api.request(
        "POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}}
    )
    return Namespace(api, name)
