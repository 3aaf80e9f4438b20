"""Two replicas of the operator as processes, with the chart's rights, on a real API server."""

from __future__ import annotations

import asyncio
import functools
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from regroup_operator.leadership.election import EXIT_CODE
from tests.support.dropping_proxy import DroppingProxy
from tests.support.kube_api import Api, Json, Namespace
from tests.support.operator_process import (
    LEASE,
    Kubelets,
    OperatorProcess,
    installed_operator,
    make_claim,
)
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

WAIT_SECONDS = 60.0
RELEASED_SECONDS, KILLED_SECONDS = 2.0, 20.0
"""Until another replica acts, as docs/tasks/upgrade.md promises it."""
TRIES = 3
"""Of a handover: other tests may take the machine's cores from one or two of them."""
Pods = dict[str, str]
"""Name -> UID."""


@pytest.fixture
def replicas(api: Api, tmp_path: Path) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    """A leader, and a standby that is ready. Neither outlives the test."""
    api.request("DELETE", LEASE)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    leader = installed_operator(api, tmp_path / "one")
    standby = OperatorProcess(tmp_path / "one/kubeconfig", tmp_path / "two")
    try:
        leader.start()
        standby.start(stands_by=True)
        yield leader, standby
    finally:
        for process in (leader, standby):
            process.end()
        api.request("DELETE", LEASE)  # the operator of the next file does not wait for its end
    for process in (leader, standby):
        assert "Traceback" not in process.log.read_text()


def lease(api: Api) -> dict[str, Any]:
    answer = api.request("GET", LEASE)
    assert answer.status == 200, answer.message
    found: dict[str, Any] = answer.body["spec"]
    return found


def start_job(namespace: Namespace) -> Kubelets:
    """A job with three workers and a coordinator."""
    make_claim(namespace)
    assert namespace.create(SMALLEST).status == 201
    kubelets = Kubelets(namespace)
    wait_until("four pods", lambda: len(kubelets.pods()) == 4, seconds=WAIT_SECONDS)
    return kubelets


def uids(kubelets: Kubelets) -> Pods:
    return {name: pod["metadata"]["uid"] for name, pod in kubelets.pods().items()}


def expect_replacement(kubelets: Kubelets, before: Pods, lost: str, *by: str) -> Json:
    """The lost worker is replaced once, by one of these, which is returned; every other pod is the
    one of before.
    """
    names = set(by)
    wait_until("a replacement", lambda: kubelets.pods().keys() & names, seconds=WAIT_SECONDS)
    pods = kubelets.pods()
    now = {name: pod["metadata"]["uid"] for name, pod in pods.items()}
    (new,) = now.keys() - before.keys()
    assert new in by
    assert {name: now[name] for name in before if name != lost} == {
        name: uid for name, uid in before.items() if name != lost
    }
    return pods[new]


def seconds_since(began: datetime, api: Api, pod: Json) -> float:
    """Until another replica had the Lease, by its own clock, and had made the pod, at most, by that
    of the API server, which rounds down to a second: no slow look of this test counts.
    """
    acquired, made = (
        datetime.fromisoformat(time)
        for time in (lease(api)["acquireTime"], pod["metadata"]["creationTimestamp"])
    )
    return (max(acquired, made + timedelta(seconds=1)) - began).total_seconds()


def test_only_the_leader_acts_and_shows_jobs_and_the_other_follows_a_sigterm_within_two_seconds(
    replicas: tuple[OperatorProcess, OperatorProcess], namespace: Namespace
) -> None:
    kubelets = start_job(namespace)
    series = re.compile(rf'^trainingjob_status_phase{{namespace="{namespace.name}"', re.MULTILINE)

    def shows_jobs(replica: OperatorProcess) -> bool:
        return series.search(replica.metrics()) is not None

    took: list[float] = []
    for worker in range(TRIES):
        leader, standby = replicas if worker % 2 == 0 else replicas[::-1]
        wait_until("its jobs", functools.partial(shows_jobs, leader), seconds=WAIT_SECONDS)
        assert not shows_jobs(standby)
        assert not standby.leads()
        before, lost = uids(kubelets), f"gpt-w{worker}-1"
        began = datetime.now(UTC)
        leader.send(signal.SIGTERM)
        kubelets.write(lost, {"phase": "Failed"})
        # A leader that ends between its write of the status and the pod leaves a number unused.
        by = (f"gpt-w{worker}-{number}" for number in range(2, 2 * TRIES + 2))
        new = expect_replacement(kubelets, before, lost, *by)
        assert leader.wait() == 0
        wait_until("another leader", standby.leads, seconds=WAIT_SECONDS)
        took.append(seconds_since(began, namespace.api, new))
        assert lease(namespace.api)["leaseTransitions"] > worker
        if took[-1] <= RELEASED_SECONDS:
            break
        leader.start(stands_by=True)
    assert min(took) <= RELEASED_SECONDS, took


@pytest.mark.long
def test_the_other_follows_a_leader_that_was_killed_within_twenty_seconds(
    replicas: tuple[OperatorProcess, OperatorProcess], namespace: Namespace
) -> None:
    leader, standby = replicas
    kubelets = start_job(namespace)
    before = uids(kubelets)
    began = datetime.now(UTC)
    leader.send(signal.SIGKILL)
    leader.wait()
    kubelets.write("gpt-w1-1", {"phase": "Failed"})
    new = expect_replacement(kubelets, before, "gpt-w1-1", "gpt-w1-2")
    assert seconds_since(began, namespace.api, new) <= KILLED_SECONDS
    assert standby.leads()
    leader.start(stands_by=True)
    assert not leader.leads()
    assert lease(namespace.api)["leaseTransitions"] == 1


@pytest.mark.long
def test_a_leader_that_was_paused_past_its_lease_writes_nothing_and_ends(
    replicas: tuple[OperatorProcess, OperatorProcess], namespace: Namespace
) -> None:
    leader, standby = replicas
    kubelets = start_job(namespace)
    before = uids(kubelets)
    leader.send(signal.SIGSTOP)
    kubelets.write("gpt-w0-1", {"phase": "Failed"})
    wait_until("another leader", standby.leads, seconds=WAIT_SECONDS)
    expect_replacement(kubelets, before, "gpt-w0-1", "gpt-w0-2")
    steady = uids(kubelets)
    holder = lease(namespace.api)["holderIdentity"]
    kubelets.write("gpt-w1-1", {"phase": "Failed"})  # the paused one will see both
    expect_replacement(kubelets, steady, "gpt-w1-1", "gpt-w1-3")
    steady = uids(kubelets)
    leader.send(signal.SIGCONT)
    assert leader.wait() == EXIT_CODE
    assert "the operator ends" in leader.log.read_text()
    assert uids(kubelets) == steady
    assert lease(namespace.api)["holderIdentity"] == holder


@pytest.mark.long
async def test_what_arrives_late_when_another_leads_is_harmless(
    replicas: tuple[OperatorProcess, OperatorProcess],
    api: Api,
    namespace: Namespace,
    tmp_path: Path,
) -> None:
    first, standby = replicas
    config = yaml.safe_load((tmp_path / "one/kubeconfig").read_text())
    cluster = config["clusters"][0]["cluster"]
    async with DroppingProxy(urlsplit(cluster["server"]).port or 443) as proxy:
        cluster["server"] = f"https://127.0.0.1:{proxy.port}"
        (tmp_path / "late").mkdir()
        (tmp_path / "late/kubeconfig").write_text(yaml.safe_dump(config))
        late = OperatorProcess(tmp_path / "late/kubeconfig", tmp_path / "late")

        def lead_by_the_proxy() -> None:
            for each in (standby, first):
                assert each.stop() == 0
            late.start()
            standby.start(stands_by=True)

        try:
            await asyncio.to_thread(lead_by_the_proxy)
            kubelets = await asyncio.to_thread(start_job, namespace)
            before = uids(kubelets)
            proxy.mute(answers=False)
            await asyncio.to_thread(kubelets.write, "gpt-w0-1", {"phase": "Failed"})
            assert await asyncio.to_thread(late.wait) == EXIT_CODE
        finally:
            late.end()
        await asyncio.to_thread(expect_replacement, kubelets, before, "gpt-w0-1", "gpt-w0-2")
        after, holder = uids(kubelets), lease(api)["holderIdentity"]
        proxy.mute(muted=False)
        await asyncio.to_thread(start_another, namespace)
        assert lease(api)["holderIdentity"] == holder
        assert {name: uid for name, uid in uids(kubelets).items() if "gpt" in name} == after


def start_another(namespace: Namespace) -> None:
    """A job that the leader starts meanwhile."""
    assert namespace.create(SMALLEST, "next").status == 201
    kubelets = Kubelets(namespace)

    def is_whole() -> bool:
        return len([name for name in kubelets.pods() if name.startswith("next-")]) == 4

    wait_until("its four pods", is_whole, seconds=WAIT_SECONDS)
