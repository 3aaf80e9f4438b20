"""A quota of Kubernetes' own bounds how many TrainingJobs a namespace may have."""

from __future__ import annotations

import pytest

from regroup_operator.api.resource import GROUP, PLURAL
from tests.support.kube_api import Json, Namespace
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

COUNT = f"count/{PLURAL}.{GROUP}"


def limit_jobs(namespace: Namespace, most: int) -> None:
    """A quota, with the status that its controller would write."""
    hard = {COUNT: str(most)}
    body: Json = {"metadata": {"name": "jobs"}, "spec": {"hard": hard}}
    namespace.api.request("POST", namespace.core("resourcequotas"), body)
    status = {"status": {"hard": hard, "used": {COUNT: "0"}}}
    path, kind = namespace.core("resourcequotas/jobs/status"), "application/merge-patch+json"
    answer = namespace.api.request("PATCH", path, status, kind)
    assert answer.status == 200, answer.message


def test_a_namespace_has_no_more_jobs_than_its_quota_and_others_are_not_bound_by_it(
    namespace: Namespace,
) -> None:
    other = Namespace.make(namespace.api, f"{namespace.name}-other")
    limit_jobs(namespace, 2)

    def is_bound() -> bool:
        answer = namespace.create(SMALLEST, "one")
        return answer.status == 201

    wait_until("a quota that is known", is_bound)
    assert namespace.create(SMALLEST, "two").status == 201
    refused = namespace.create(SMALLEST, "three")
    assert refused.status == 403
    assert "exceeded quota: jobs" in refused.message
    assert COUNT in refused.message
    for name in ("one", "two", "three"):
        assert other.create(SMALLEST, name).status == 201
