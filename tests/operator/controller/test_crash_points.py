"""An operator that dies at any of its writes, before or after it is carried out: the next one makes
the job whole, and everything is counted and reported once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from regroup_operator.controller import handlers
from regroup_operator.controller.handlers import Operator
from regroup_trainer.system.machine_address import free_port
from tests.support.fake_cluster_api import FakeClusterApi
from tests.support.operator_simulation import make_spec
from tests.support.rendering import KEYS, SETTINGS
from tests.support.waiting import until

Json = dict[str, Any]
WORKERS = 8


async def start_operator() -> Operator:
    """One that asks the API server that `login` names."""
    settings = SETTINGS.model_copy(update={"health_port": free_port()})
    operator = Operator(settings, KEYS)
    await operator.start(may_watch_nodes=True)
    return operator


async def make_job(api: FakeClusterApi) -> None:
    """A job, and its claim."""
    claim = {"metadata": {"name": "shared", "namespace": "a"}, "kind": "PersistentVolumeClaim"}
    await api.store("persistentvolumeclaims", {**claim, "spec": {"accessModes": ["ReadWriteMany"]}})
    bounds = {"minReplicas": 2, "maxReplicas": WORKERS}
    spec = make_spec(replicas=WORKERS, elasticPolicy=bounds)
    await api.store("trainingjobs", {"metadata": {"namespace": "a", "name": "gpt"}, "spec": spec})


def live_pods(api: FakeClusterApi) -> list[Json]:
    """Pods that may run."""
    return [pod for pod in api.all("pods") if pod["status"]["phase"] != "Failed"]


def is_whole(api: FakeClusterApi) -> bool:
    """Whether the job has all that it needs."""
    kinds = ("services", "networkpolicies", "poddisruptionbudgets", "secrets")
    return len(live_pods(api)) == WORKERS + 1 and all(api.all(kind) for kind in kinds)


async def run_workers(api: FakeClusterApi) -> None:
    """What kubelets do with new pods."""
    for pod in api.all("pods"):
        if "regroup.dev/index" in pod["metadata"]["labels"]:
            await api.store("pods", {**pod, "status": {"phase": "Running"}})


async def fail(api: FakeClusterApi, index: int) -> str:
    """End a worker's program with an error. Returns the name of the pod."""
    (pod,) = (
        p for p in live_pods(api) if p["metadata"]["labels"].get("regroup.dev/index") == str(index)
    )
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "boom"}}
    shown = {"name": "trainer", "state": ended, "image": "a", "imageID": ""}
    status = {"phase": "Failed", "containerStatuses": [shown]}
    await api.store("pods", {**pod, "status": status})
    return str(pod["metadata"]["name"])


async def course(api: FakeClusterApi) -> None:
    """A start, and the loss of a worker."""
    await until("all pods", lambda: len(live_pods(api)) == WORKERS + 1)
    await run_workers(api)
    await until("a whole job", lambda: is_whole(api))
    await fail(api, 3)
    await until("a replacement", lambda: is_whole(api) and len(api.all("pods")) == WORKERS + 2)


async def rest(operator: Operator, api: FakeClusterApi) -> None:
    """Wait until nothing is left to do but to look again. A leader has its first rounds at once."""
    await until("a leader", lambda: operator._leads)
    version = -1
    while version != api.version or len(operator.queue) or operator.queue._working:
        version = api.version
        await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def writes() -> int:
    """How many writes a course without a crash takes."""

    async def count() -> int:
        async with FakeClusterApi() as api:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(handlers, "login", api.login)
                await make_job(api)
                operator = await start_operator()
                await course(api)
                await rest(operator, api)
                await operator.stop()
            return api.writes

    return asyncio.run(count())


async def crash_at(
    number: int, *, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> FakeClusterApi:
    """The API server after a course in which the operator died at this write."""
    async with FakeClusterApi() as api:
        monkeypatch.setattr(handlers, "login", api.login)
        await make_job(api)
        api.lose_answer_at(number, applied=applied)
        first = await start_operator()
        running = asyncio.create_task(course(api))
        await until("a lost answer", lambda: api.has_lost_answer or running.done())
        await first.stop()
        api.lose_answer_at(0, applied=False)
        second = await start_operator()
        await running
        await rest(second, api)
        await second.stop()
        return api


@pytest.mark.parametrize("applied", [False, True], ids=["not carried out", "carried out"])
async def test_wherever_the_operator_dies_the_next_one_counts_and_reports_all_once(
    writes: int, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert writes > WORKERS + 10
    for number in range(1, writes + 1):
        api = await crash_at(number, applied=applied, monkeypatch=monkeypatch)
        where = f"the operator died at write {number} of {writes}"
        (job,) = api.all("trainingjobs")
        indices = Counter(p["metadata"]["labels"].get("regroup.dev/index") for p in live_pods(api))
        assert set(indices.values()) == {1}, where
        assert len(api.created["pods"]) == len(set(api.created["pods"])), where
        assert job["status"]["podFailures"] == 1, where
        assert len(job["status"]["handledPods"]) == 1, where
        reasons = Counter(event["reason"] for event in api.all("events"))
        assert reasons["WorkerLost"] == 1, where
        remembered = {event["name"] for event in job["status"]["recentEvents"]}
        assert remembered <= {event["metadata"]["name"] for event in api.all("events")}, where
