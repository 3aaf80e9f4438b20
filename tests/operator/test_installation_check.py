"""What `helm test` finds, beside an API server in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from regroup_operator import installation_check
from regroup_operator.controller.cluster import Cluster
from regroup_operator.installation_check import InstallationError, check
from tests.support.fake_cluster_api import FakeClusterApi

LEASE = "regroup-system/regroup-operator"


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeClusterApi]:
    monkeypatch.setattr(installation_check, "PAUSE_SECONDS", 0)
    async with FakeClusterApi() as api:
        yield api


async def renew(api: FakeClusterApi, holder: str = "pod-1_a") -> None:
    metadata = {"namespace": "regroup-system", "name": "regroup-operator", "uid": "1"}
    await api.store("leases", {"metadata": metadata, "spec": {"holderIdentity": holder}})


@contextlib.asynccontextmanager
async def renewing(api: FakeClusterApi) -> AsyncIterator[None]:
    """An operator that leads meanwhile."""

    async def renew_always() -> None:
        while True:
            await renew(api)
            await asyncio.sleep(0)

    task = asyncio.create_task(renew_always())
    yield
    task.cancel()


async def report_of(api: FakeClusterApi, *namespaces: str, wait_seconds: float = 60) -> list[str]:
    lines: list[str] = []
    async with Cluster(api.login) as cluster:
        await check(cluster, LEASE, namespaces, report=lines.append, wait_seconds=wait_seconds)
    return lines


async def test_an_operator_that_leads_and_reads_jobs_passes(api: FakeClusterApi) -> None:
    async with renewing(api):
        assert await report_of(api) == [
            f"operator pod-1_a leads, and renews Lease {LEASE}",
            "the operator may read the TrainingJobs of all namespaces",
        ]
    assert api.requests["list trainingjobs"] == 1


async def test_each_watched_namespace_is_read(api: FakeClusterApi) -> None:
    async with renewing(api):
        assert len(await report_of(api, "a", "b")) == 3
    assert api.requests["list trainingjobs"] == 2


@pytest.mark.parametrize("holder", [None, "", "pod-of-a-dead-node"])
async def test_a_lease_that_nobody_renews_fails(api: FakeClusterApi, holder: str | None) -> None:
    if holder is not None:
        await renew(api, holder)
    with pytest.raises(InstallationError, match=r"nobody has renewed .* logs of the operator"):
        await report_of(api, wait_seconds=0.05)


async def test_jobs_that_the_operator_may_not_read_fail(api: FakeClusterApi) -> None:
    api.withheld.add("trainingjobs")
    async with renewing(api):
        with pytest.raises(InstallationError, match=r"look at the operator's roles"):
            await report_of(api)
