"""One job of thousands of workers: it starts, trains and loses a worker, on a real API server.

WORKERS=2000 makes it two thousand; it then needs `--timeout=1800`, and a machine of its own.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from regroup_operator.api import names
from regroup_trainer.protocol.job_status import WATCH_LINE_BYTES, MemberStatus
from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Json, Namespace
from tests.support.operator_process import Kubelets, OperatorProcess, make_claim, make_node
from tests.support.operator_simulation import make_coordinator_status, make_spec
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.apiserver, pytest.mark.long]
COUNT = int(os.environ.get("WORKERS", "300"))
PATIENCE = max(120, COUNT)
"""Seconds for what takes longer the more workers there are."""
AT_ONCE = 8
"""Requests to the API server."""
STATUS_BYTES = 64 * 1024
"""Of a status: it names 64 workers, and the ended pods that are still there."""
LOSS_CPU_SECONDS = 4.0
"""For the operator to replace a worker. At 2,000 workers it takes 0.9, and has taken two: it lists
all pods, and the stub has it list them again, since it goes on reporting the lost one.
"""


def run_all(kubelets: Kubelets, pods: dict[str, Json]) -> None:
    """Call these pods Running, in one request each."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(lambda name: kubelets.write(name, {"phase": "Running"}), pods):
            pass


def members_of(pods: dict[str, Json]) -> tuple[MemberStatus, ...]:
    """Each of these pods, with a rank."""
    return tuple(
        MemberStatus(
            member=pod["metadata"]["uid"],
            index=int(pod["metadata"]["labels"][names.INDEX]),
            pod=name,
            node="n1",
            rank=rank,
            step=1,
        )
        for rank, (name, pod) in enumerate(sorted(pods.items()))
    )


def metric(operator: OperatorProcess, name: str) -> float:
    """The sum of the series of which this is the beginning."""
    lines = operator.metrics().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def statuses_written(operator: OperatorProcess) -> float:
    """Nearly: some patches are of other objects."""
    return metric(operator, 'rest_client_requests_total{code="200",method="PATCH"}')


def test_a_job_of_thousands_of_workers_starts_and_replaces_one_at_little_cost(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    make_node(namespace.api, "n1")
    make_claim(namespace)
    kubelets = Kubelets(namespace)
    bounds = {"minReplicas": 1, "maxReplicas": COUNT}
    used, wrote, begun = operator.cpu_seconds(), statuses_written(operator), time.monotonic()

    def spent(what: str) -> float:
        """CPU seconds since the last call."""
        nonlocal used, wrote, begun
        seconds, writes = operator.cpu_seconds() - used, statuses_written(operator) - wrote
        elapsed = time.monotonic() - begun
        print(f"{what}: {seconds:.2f} s of CPU, {writes:.0f} statuses, {elapsed:.1f} s")
        used, wrote, begun = used + seconds, wrote + writes, begun + elapsed
        return seconds

    namespace.create(make_spec(replicas=COUNT, elasticPolicy=bounds))
    wait_until("all pods", lambda: len(kubelets.pods("worker")) == COUNT, seconds=PATIENCE)
    spent(f"{COUNT} pods made")
    workers = kubelets.pods("worker")
    run_all(kubelets, workers)
    spent("all run")
    report = make_coordinator_status(
        members=members_of(workers), world_size=COUNT, agents_in_contact=(), total_steps=0
    )
    with CoordinatorStub(report) as stub:
        stub.asks = len(report.model_dump_json()) >= WATCH_LINE_BYTES
        kubelets.run("gpt-c1", "n1", stub.address)

        def trains() -> bool:
            return bool(namespace.read()["status"].get("readyReplicas") == COUNT)

        wait_until("a job that trains", trains, seconds=PATIENCE)
        spent("it trains")
        lost = sorted(workers)[0]
        ended = {"terminated": {"exitCode": 137, "reason": "Error"}}
        shown = {"name": "trainer", "state": ended, "image": "a", "imageID": ""}
        kubelets.write(lost, {"phase": "Failed", "containerStatuses": [shown]})
        wait_until("a new pod", lambda: len(kubelets.pods("worker")) == COUNT + 1, seconds=60)
        assert spent("one lost") < LOSS_CPU_SECONDS
        status = namespace.read()["status"]
        size = len(json.dumps(status).encode())
        resident = metric(operator, "process_resident_memory_bytes") / 2**20
        print(f"{size} bytes of status, {resident:.0f} MiB resident")
        assert size < STATUS_BYTES
