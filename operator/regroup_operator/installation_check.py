"""What `helm test` runs in a pod: whether a replica of the operator leads, and whether the operator
may read the TrainingJobs that it is to run.

python -m regroup_operator.installation_check NAMESPACE/LEASE [NAMESPACE ...]

The pod has the operator's service account and asks the API server alone: the operator's own ports
are closed to pods.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus

from regroup_operator.controller.cluster import Cluster, jobs_path
from regroup_operator.controller.credentials import login
from regroup_operator.errors import ClusterError, OperatorError
from regroup_operator.leadership.lease_requests import LeaseRequests

WAIT_SECONDS = 90.0
"""For an operator that has just been installed, whose image is still pulled."""
PAUSE_SECONDS = 1.0


class InstallationError(OperatorError):
    """The installation does not work. The message says what to look at."""


async def check(
    cluster: Cluster,
    lease: str,
    namespaces: Sequence[str] = (),
    *,
    report: Callable[[str], None] = print,
    wait_seconds: float = WAIT_SECONDS,
) -> None:
    """Report what works. `lease` is `namespace/name`; no `namespaces` are all. Raises
    InstallationError, and ClusterError for another refusal.
    """
    requests = LeaseRequests(cluster.connection, lease)
    try:
        async with asyncio.timeout(wait_seconds):
            holder = await _renewed_by(requests)
    except TimeoutError:
        raise InstallationError(
            f"nobody has renewed Lease {lease} for {wait_seconds:.0f} s: look at the logs of the "
            "operator's pods (kubectl logs, kubectl describe pod)"
        ) from None
    report(f"operator {holder} leads, and renews Lease {lease}")
    for namespace in namespaces or (None,):
        await _read_jobs(cluster, namespace)
        where = "all namespaces" if namespace is None else f"namespace {namespace}"
        report(f"the operator may read the TrainingJobs of {where}")


async def _renewed_by(requests: LeaseRequests) -> str:
    """Who changes the Lease while this waits. A holder that stays may have died."""
    first = await requests.read()
    while True:
        await asyncio.sleep(PAUSE_SECONDS)
        now = await requests.read()
        if now is not None and now.holder and now != first:
            return now.holder


async def _read_jobs(cluster: Cluster, namespace: str | None) -> None:
    path = jobs_path(namespace)
    try:
        await cluster.connection.request("GET", path, query={"limit": "1"})
    except ClusterError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise InstallationError(
                f"{path} is not served: install the definition of TrainingJob (crds.enabled)"
            ) from None
        if error.status == HTTPStatus.FORBIDDEN:
            raise InstallationError(f"{error}: look at the operator's roles") from None
        raise


async def _run(lease: str, namespaces: Sequence[str]) -> None:
    async with Cluster(login) as cluster:
        await check(cluster, lease, namespaces)


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 1 when something does not work, with a sentence on stderr."""
    try:
        asyncio.run(_run(arguments[0], arguments[1:]))
    except OperatorError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
