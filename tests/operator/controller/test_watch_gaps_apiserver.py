"""A watch that goes on and leaves something out, between the operator and a real API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.coordinator_stub import CoordinatorStub
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kube_api import Api, Json, Namespace
from tests.support.operator_process import (
    Kubelets,
    OperatorProcess,
    installed_operator,
    member,
)
from tests.support.specs import SMALLEST, put
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.apiserver, pytest.mark.long, pytest.mark.timeout(600)]
BOOKMARK_SECONDS = 150.0
"""The API server sends one about once a minute."""


class Hidden:
    """The events that are left out: of one type, about objects of one name."""

    def __init__(self) -> None:
        self.kind = self.name = ""

    def __call__(self, event: Json) -> bool:
        about = event["object"].get("metadata", {})
        return (event["type"], about.get("name")) == (self.kind, self.name)


@pytest.fixture(scope="module")
def proxy(api: Api) -> Iterator[FaultyProxy]:
    with FaultyProxy(api.kubeconfig, 1).serving() as proxy:
        proxy.hides = Hidden()
        yield proxy
    assert not proxy.errors


@pytest.fixture(scope="module")
def operator(
    api: Api, proxy: FaultyProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One that sees the API server through the proxy."""
    process = installed_operator(api, tmp_path_factory.mktemp("operator"))
    proxy.kubeconfig_of(process.log.parent / "kubeconfig")
    process.start()
    yield process
    assert process.stop() == 0
    assert "Traceback" not in process.log.read_text()


def hide(proxy: FaultyProxy, kind: str, name: str) -> None:
    """From now on; no other event is hidden any more."""
    assert isinstance(proxy.hides, Hidden)
    proxy.hidden.clear()
    proxy.hides.kind, proxy.hides.name = kind, name


def test_a_worker_whose_deletion_the_watch_hides_is_replaced_once_and_does_not_come_back(
    operator: OperatorProcess,
    namespace: Namespace,
    proxy: FaultyProxy,
    running: tuple[Kubelets, CoordinatorStub],
) -> None:
    """Its coordinator loses it. A list shows that it is gone, and then bookmarks come."""
    kubelets, stub = running
    pods = [pod for _, pod in sorted(kubelets.pods("worker").items())]
    hide(proxy, "DELETED", "gpt-w1-1")
    path = namespace.core("pods/gpt-w1-1")
    namespace.api.request("DELETE", path, {"gracePeriodSeconds": 0})
    wait_until("an event that was hidden", lambda: proxy.hidden)
    others = [member(pods[0], 0), member(pods[2], 1)]
    stub.report(members=(*others, member(pods[1], None, "no contact for 2.0 s")), world_size=2)
    wait_until("the replacement", lambda: "gpt-w1-2" in kubelets.pods())
    kubelets.run("gpt-w1-2", "n2")
    stub.report(members=tuple(others))  # it starts, and is no member yet
    wait_until(
        "a bookmark that shows what the watch lacks",
        lambda: "without a change of" in operator.log.read_text(),
        seconds=BOOKMARK_SECONDS,
    )
    wait_until("a list", lambda: operator.total("reflector_lists_total", name="pods") >= 2)
    before = operator.total("controller_runtime_reconcile_total")
    stub.report(members=(*others, member(kubelets.pods()["gpt-w1-2"], 2)), world_size=3)
    wait_until("all ranks", lambda: namespace.read()["status"]["readyReplicas"] == 3)
    wait_until("a round", lambda: operator.total("controller_runtime_reconcile_total") > before)
    assert kubelets.pods().keys() == {"gpt-c1", "gpt-w0-1", "gpt-w1-2", "gpt-w2-1"}


def test_a_change_of_a_spec_that_the_watch_hides_is_seen_with_the_next_write_of_the_status(
    namespace: Namespace, proxy: FaultyProxy, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    kubelets, stub = running
    hide(proxy, "MODIFIED", "gpt")
    namespace.replace_spec(put(SMALLEST, "replicas", 4), dry_run=False)
    wait_until("an event that was hidden", lambda: proxy.hidden)
    assert len(kubelets.pods("worker")) == 3
    stub.report(phase="recovering", message="recovering")
    wait_until("the fourth worker", lambda: len(kubelets.pods("worker")) == 4)
