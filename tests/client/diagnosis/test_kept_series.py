"""What a job has left of its course, on a cluster that the tests play."""

from __future__ import annotations

from typing import Any, cast

import pytest

from regroup.diagnosis.kept_series import kept_course, kept_series, may_have_kept_series
from regroup.diagnosis.reader_pod import UnreadableJobError
from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.job_record import read_job
from regroup.kubernetes.pod_channels import CommandOutput
from tests.support.cluster_objects import job_object, running_status
from tests.support.operator_simulation import make_spec

STORAGE = {"persistentVolumeClaim": {"claimName": "shared"}}
IMAGES = {"trainer": "trainer:1", "coordinator": "operator:1"}


class Cluster:
    """A job that has ended, and what its reader answers."""

    def __init__(self, answer: CommandOutput, claim: ClusterError | None = None) -> None:
        self.answer, self.claim_error = answer, claim
        self.pods_now: set[str] = set()
        self.made = 0
        self.asked: list[str] = []

    def job(self, _namespace: str, name: str) -> dict[str, Any]:
        status = running_status(phase="Succeeded", lastImages=IMAGES)
        spec = make_spec(checkpoint={"storage": STORAGE})
        job = job_object(status, name=name)
        metadata = {**job["metadata"], "uid": "4322f31b-aaaa"}
        return {**job, "metadata": metadata, "spec": spec}

    def pods(self, _namespace: str, _job: str) -> list[dict[str, Any]]:
        return []

    def claim(self, _namespace: str, _name: str) -> dict[str, Any]:
        if self.claim_error is not None:
            raise self.claim_error
        return {}

    def create_pod(self, _namespace: str, body: dict[str, Any]) -> None:
        self.pods_now.add(body["metadata"]["name"])
        self.made += 1

    def pod(self, _namespace: str, name: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "status": {"phase": "Running"}}

    def delete_pod(self, _namespace: str, name: str) -> None:
        self.pods_now.remove(name)

    def run_in_pod(self, _ns: str, pod: Any, words: tuple[str, ...], _s: float) -> CommandOutput:
        assert pod.name in self.pods_now
        self.asked.append(words[-1])
        return self.answer


def read(cluster: Cluster) -> str:
    return kept_series(cast("ClusterApi", cluster), "team", "gpt")


def test_it_is_read_by_a_pod_that_is_gone_afterwards() -> None:
    cluster = Cluster(CommandOutput("{}", "", 0))
    assert read(cluster) == "{}"
    assert cluster.asked == ["/regroup/volume/team/gpt-4322f31b/series.json"]
    assert not cluster.pods_now


def test_one_pod_lists_the_checkpoints_too_where_that_is_asked_for() -> None:
    cluster = Cluster(CommandOutput("[]", "", 0))
    course = kept_course(cast("ClusterApi", cluster), "team", "gpt", with_checkpoints=True)
    assert course.checkpoints == CommandOutput("[]", "", 0)
    assert cluster.asked == ["/regroup/volume/team/gpt-4322f31b/series.json", "--json"]
    assert cluster.made == 1
    assert not cluster.pods_now


def test_a_volume_without_it_is_one_sentence() -> None:
    cluster = Cluster(CommandOutput("", "Traceback\nFileNotFoundError: series.json", 1))
    with pytest.raises(UnreadableJobError, match=r"no metrics on claim shared: FileNotFoundError"):
        read(cluster)
    assert not cluster.pods_now


def test_a_claim_that_is_gone_gets_no_pod_and_one_that_may_not_be_seen_does() -> None:
    answer = CommandOutput("{}", "", 0)
    with pytest.raises(UnreadableJobError, match="claim shared of job gpt is gone"):
        read(Cluster(answer, ClusterError("not found", 404)))
    with pytest.raises(ClusterError, match="the API server is busy"):
        read(Cluster(answer, ClusterError("the API server is busy", 429)))
    assert read(Cluster(answer, ClusterError("you may not", 403))) == "{}"


@pytest.mark.parametrize(
    ("phase", "launcher", "step", "may"),
    [
        ("Succeeded", "regroup", 9, True),
        ("Suspended", "regroup", 9, True),
        ("Running", "regroup", 9, False),
        ("Failed", "regroup", 0, False),
        ("Failed", "torchrun", 9, False),
    ],
)
def test_jobs_that_rest_and_had_a_coordinator_may_have_left_it(
    phase: str, launcher: str, step: int, *, may: bool
) -> None:
    job = job_object(running_status(phase=phase, progress={"step": step}))
    job["spec"] = {**job["spec"], "launcher": launcher}
    assert may_have_kept_series(read_job(job)) is may
