"""What a probe of a volume leaves behind, on a cluster that the tests play."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from regroup.diagnosis.volume_probe import Probe
from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.pod_channels import CommandOutput
from regroup.kubernetes.pod_record import PodRecord

Json = dict[str, Any]


class Cluster:
    """Its pods run. The line of a shell that has the word `fails` does not succeed."""

    def __init__(self, fails: str, error: ClusterError | None = None) -> None:
        self.fails, self.error = fails, error
        self.lines: list[str] = []

    def create_pod(self, _namespace: str, _body: Json) -> None:
        pass

    def pod(self, _namespace: str, name: str) -> Json:
        return {"metadata": {"name": name}, "status": {"phase": "Running"}}

    def delete_pod(self, _namespace: str, _name: str) -> None:
        self.lines.append("pod deleted")

    def run_in_pod(
        self, _namespace: str, _pod: PodRecord, words: Sequence[str], _seconds: float
    ) -> CommandOutput:
        self.lines.append(words[-1])
        if self.fails not in words[-1]:
            return CommandOutput("", "", 0)
        if self.error is not None:
            raise self.error
        return CommandOutput("", "dd: No space left on device", 1)


@pytest.mark.parametrize("error", [None, ClusterError("no answer within 120 s")])
@pytest.mark.parametrize("fails", ["dd if", "wc -c", "nothing", "rm -f"])
def test_its_files_are_removed_before_its_pods_also_when_a_step_fails(
    fails: str, error: ClusterError | None
) -> None:
    cluster = Cluster(fails, error)
    (finding,) = Probe(cast("ClusterApi", cluster), "team", "shared", "busybox").run()
    assert finding.state == "fail"
    *_, last, one, other = cluster.lines
    assert last.startswith("rm -f /volume/.regroup-doctor/")
    assert (one, other) == ("pod deleted", "pod deleted")
