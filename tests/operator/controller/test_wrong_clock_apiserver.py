"""An operator whose clock is wrong, and is set while it runs, on a real API server: what is lost is
replaced at once, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial

import pytest

from soak import clock
from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Api, Json, Namespace
from tests.support.operator_process import (
    LEASE,
    NODES,
    Kubelets,
    OperatorProcess,
    installed_operator,
    member,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.apiserver, pytest.mark.long, pytest.mark.timeout(600)]
CLOCKS = (30, -30, 600, -240)
"""Seconds that it is ahead. At five minutes behind, the API server's certificate is not valid yet.
"""
AT_ONCE_SECONDS = 10.0
FILE = "ahead"


@pytest.fixture(scope="module")
def operator(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """An operator that sees the clock which the file beside its log says."""
    folder = tmp_path_factory.mktemp("operator")
    installed_operator(api, folder)
    clock.compiled(folder)
    variables = clock.variables(str(folder), str(folder / FILE))
    process = OperatorProcess(folder / "kubeconfig", folder, variables)
    (folder / FILE).write_text(str(CLOCKS[0]))
    process.start()
    yield process
    assert process.stop() == 0
    assert "Traceback" not in process.log.read_text()


def set_clock(operator: OperatorProcess, api: Api, seconds: int) -> None:
    """Let it be so far ahead. The operator reads the clock whenever it renews its Lease."""
    (operator.log.parent / FILE).write_text(str(seconds))
    for _ in range(2):
        wait_until("a renewal", partial(is_renewed, api, read_lease(api)))


def read_lease(api: Api) -> Json:
    return api.request("GET", LEASE).body


def is_renewed(api: Api, before: Json) -> bool:
    return read_lease(api) != before


def workers(kubelets: Kubelets) -> list[Json]:
    """The worker pods, by index."""
    found = kubelets.pods("worker").values()
    return sorted(found, key=lambda pod: pod["metadata"]["labels"]["regroup.dev/index"])


def report(kubelets: Kubelets, stub: CoordinatorStub, lost: str = "") -> None:
    """All workers have ranks, or are lost."""
    ranks = (None, None, None) if lost else range(3)
    pods = zip(workers(kubelets), ranks, strict=True)
    stub.report(members=tuple(member(pod, rank, lost) for pod, rank in pods))


def uids(kubelets: Kubelets) -> list[str]:
    return [pod["metadata"]["uid"] for pod in workers(kubelets)]


def ahead_by_events(namespace: Namespace) -> float:
    """How far the operator's clock was ahead of the API server's when it last made workers."""
    events = namespace.api.request("GET", namespace.core("events")).body["items"]
    made = [event for event in events if event["reason"] == "WorkersCreated"]
    event = max(made, key=lambda each: int(each["metadata"]["resourceVersion"]))
    created = datetime.fromisoformat(event["metadata"]["creationTimestamp"])
    return (datetime.fromisoformat(event["lastTimestamp"]) - created).total_seconds()


def place(kubelets: Kubelets, name: str) -> None:
    """Say that it has its node since its job was made: before any Service that is made again."""
    made = kubelets.namespace.read()["metadata"]["creationTimestamp"]
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": made}
    kubelets.write(name, {"conditions": [placed, {"type": "Ready", "status": "True"}]})


def replace_worker(kubelets: Kubelets, stub: CoordinatorStub, number: int) -> None:
    """Lose worker 1, and let the next one join."""
    lost, following = f"gpt-w1-{number}", f"gpt-w1-{number + 1}"
    path = kubelets.namespace.core(f"pods/{lost}")
    kubelets.namespace.api.request("DELETE", path, {"gracePeriodSeconds": 0})
    wait_until(following, lambda: following in kubelets.pods(), seconds=AT_ONCE_SECONDS)
    kubelets.run(following, NODES[1])
    place(kubelets, following)
    report(kubelets, stub)


def delete_service(namespace: Namespace) -> None:
    """Delete it, and wait until it is made again."""
    path = namespace.core("services/gpt-coordinator")
    former = namespace.api.request("GET", path).body["metadata"]["uid"]
    assert namespace.api.request("DELETE", path).status == 200

    def is_new() -> bool:
        answer = namespace.api.request("GET", path)
        return answer.status == 200 and answer.body["metadata"]["uid"] != former

    wait_until("another Service", is_new, seconds=60)


def have_rounds(operator: OperatorProcess, count: int) -> None:
    before = operator.total("controller_runtime_reconcile_total")
    enough = before + count
    wait_until("rounds", lambda: operator.total("controller_runtime_reconcile_total") >= enough)


def test_whatever_its_clock_says_the_operator_replaces_what_is_lost_and_nothing_else(
    operator: OperatorProcess, namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    kubelets, stub = running
    for name in kubelets.pods("worker"):
        place(kubelets, name)
    for number, ahead in enumerate(CLOCKS, start=1):
        set_clock(operator, namespace.api, ahead)
        others = [uids(kubelets)[0], uids(kubelets)[2]]
        replace_worker(kubelets, stub, number)
        assert [uids(kubelets)[0], uids(kubelets)[2]] == others
        assert len(kubelets.pods()) == 4

        present = uids(kubelets)
        delete_service(namespace)
        report(kubelets, stub, lost="no contact for 2.0 s")
        wait_until("nobody with a rank", lambda: namespace.read()["status"]["readyReplicas"] == 0)
        have_rounds(operator, 3)  # two seconds apart: longer than a lost member is waited for
        report(kubelets, stub)
        wait_until("all ranks", lambda: namespace.read()["status"]["readyReplicas"] == 3)
        assert uids(kubelets) == present, f"a clock that is {ahead} s ahead"
        assert abs(ahead_by_events(namespace) - ahead) < 10
    assert operator.exit_code() is None
    assert operator.leads()
    assert namespace.read()["status"]["phase"] == "Running"
