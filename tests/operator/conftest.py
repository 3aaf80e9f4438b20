"""A real API server with the TrainingJob definition, for all tests of the operator; a namespace for
each test.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from devcluster.apiserver import ApiServer
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kube_api import Api, Namespace, install_definition


@pytest.fixture(scope="session")
def api() -> Iterator[Api]:
    """The API server with our definition."""
    with ApiServer() as server:
        api = Api(server.kubeconfig)
        install_definition(api)
        yield api


@pytest.fixture
def proxy(api: Api) -> Iterator[FaultyProxy]:
    """It passes all on, until a test has it hold something back or strike at a write."""
    with FaultyProxy(api.kubeconfig, seed=0).serving() as proxy:
        yield proxy
    assert not proxy.errors


_numbers = itertools.count(1)


@pytest.fixture
def namespace(api: Api) -> Iterator[Namespace]:
    """A fresh namespace. Its jobs do not outlive the test: ten that are left without coordinators
    would look like an outage to the operator, which all tests share.
    """
    made = Namespace.make(api, f"test-{next(_numbers)}")
    yield made
    made.api.request("DELETE", made.jobs())
