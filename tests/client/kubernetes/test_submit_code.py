"""A job and its code are created together: the job owns the code, and waits for it."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest

from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.cluster_errors import ClusterError, Request, refusal
from regroup.kubernetes.submit_code import CODE, submit, try_out, with_digest

Json = dict[str, Any]
CONFIG_MAP: Json = {"metadata": {"name": "gpt-code", "labels": {"a": "b"}}, "data": {"main.py": ""}}
JOB: Json = {"metadata": {"name": "gpt", "annotations": {"note": "mine"}}, "spec": {"replicas": 1}}


class Cluster:
    """An API server of one namespace that can refuse ConfigMaps."""

    def __init__(self) -> None:
        self.jobs: dict[str, Json] = {}
        self.config_maps: dict[str, Json] = {}
        self.refuses = False
        self.calls: list[str] = []

    def create_job(self, namespace: str, document: Json, *, dry_run: bool) -> Json:
        self.calls.append("create_job")
        name = document["metadata"]["name"]
        if name in self.jobs:
            raise conflict("trainingjobs", name)
        made = copy.deepcopy(document)
        made["metadata"]["uid"] = f"uid-{len(self.calls)}"
        if not dry_run:
            self.jobs[name] = made
        return made

    def job(self, namespace: str, name: str) -> Json:
        return self.jobs[name]

    def patch_job(self, namespace: str, name: str, patch: Json, *, dry_run: bool) -> Json:
        self.calls.append("patch_job")
        self.jobs[name]["spec"].update(patch["spec"])
        return self.jobs[name]

    def delete_job(self, namespace: str, name: str) -> None:
        del self.jobs[name]

    def create_config_map(self, namespace: str, body: Json, *, dry_run: bool = False) -> None:
        self.calls.append("create_config_map")
        name = body["metadata"]["name"]
        if self.refuses:
            raise refusal(Request("create", "configmaps", "team", name), 403, None)
        if name in self.config_maps:
            raise conflict("configmaps", name)
        if not dry_run:
            self.config_maps[name] = copy.deepcopy(body)

    def config_map(self, namespace: str, name: str) -> Json:
        return self.config_maps[name]


def conflict(plural: str, name: str) -> ClusterError:
    return refusal(Request("create", plural, "team", name), 409, None)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def send(cluster: Cluster, job: Json = JOB) -> Json:
    return submit(cast(ClusterApi, cluster), "team", with_digest(job, CONFIG_MAP), CONFIG_MAP)


def test_the_job_owns_its_code_and_is_resumed_last(cluster: Cluster) -> None:
    made = send(cluster)
    assert cluster.calls == ["create_job", "create_config_map", "patch_job"]
    assert made["spec"] == {"replicas": 1, "suspend": False}
    assert made["metadata"]["annotations"]["note"] == "mine"
    code = cluster.config_maps["gpt-code"]
    (owner,) = code["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == (
        "TrainingJob",
        "gpt",
        made["metadata"]["uid"],
    )
    assert code["metadata"]["labels"] == {"a": "b", "regroup.dev/job": "gpt"}
    assert code["immutable"] is True
    assert code["data"] == CONFIG_MAP["data"]


def test_a_job_that_is_to_be_suspended_stays_so(cluster: Cluster) -> None:
    assert send(cluster, {**JOB, "spec": {"suspend": True}})["spec"]["suspend"] is True


def test_a_job_whose_code_is_refused_is_deleted_again(cluster: Cluster) -> None:
    cluster.refuses = True
    with pytest.raises(ClusterError):
        send(cluster)
    assert not cluster.jobs


def test_the_same_submission_goes_on_where_it_was_cut_off(cluster: Cluster) -> None:
    marked = with_digest(JOB, CONFIG_MAP)
    suspended = {**marked, "spec": {**JOB["spec"], "suspend": True}}
    cluster.create_job("team", suspended, dry_run=False)
    assert send(cluster)["spec"]["suspend"] is False
    assert cluster.config_maps
    with pytest.raises(ClusterError):
        send(cluster)


def test_other_code_is_another_submission() -> None:
    other = {**CONFIG_MAP, "data": {"main.py": "pass"}}
    digests = {
        with_digest(JOB, code)["metadata"]["annotations"][CODE] for code in (CONFIG_MAP, other)
    }
    assert len(digests) == 2


def test_a_dry_run_asks_about_both_and_leaves_nothing(cluster: Cluster) -> None:
    try_out(cast(ClusterApi, cluster), "team", JOB, CONFIG_MAP)
    assert sorted(cluster.calls) == ["create_config_map", "create_job"]
    assert not cluster.jobs
    assert not cluster.config_maps
