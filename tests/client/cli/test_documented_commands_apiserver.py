"""Commands of the pages that no other test types, since they need what our clusters lack: other
operators, metrics, a container that failed. An API server has these as objects here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from devcluster.apiserver import ApiServer
from tests.support.cluster_objects import condition, running_status
from tests.support.documented_commands import commands
from tests.support.kube_api import ROOT, Api, Json, Namespace, install_definition
from tests.support.played_kubelet import SUCCESS, Played, played_node
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]
INTERNAL_ERROR = ROOT / "docs/runbooks/TrainingJobInternalError.md"
PYTORCH_JOB = """\
pytorchReplicaSpecs:
  Worker:
    replicas: 2
    template:
      spec:
        containers: [{name: pytorch, image: "train:1", command: [torchrun, train.py]}]
"""
RUNTIME = """\
mlPolicy: {numNodes: 2, torch: {}}
template:
  spec:
    replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec: {template: {spec: {containers: [{name: node, image: "train:1"}]}}}
"""
TRAIN_JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: mnist}
spec:
  runtimeRef: {name: torch-distributed}
  trainer: {command: [torchrun, train.py]}
"""


def play(pod: str, words: Sequence[str]) -> Played:
    """What the pods of the node have written."""
    assert words[0] == "logs" and "previous=true" in words[1]
    return f"{pod} has ended with an error\n", "", SUCCESS


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer() as started, played_node(started, "n1", play):
        yield started


def serve(api: Api, group: str, version: str, kind: str, plural: str, scope: str) -> str:
    """Have objects of another project, of any shape. Returns the path of the group."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    note = {"api-approved.kubernetes.io": "unapproved, of a test"}
    versions = [
        {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    ]
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    body = {
        "metadata": {"name": f"{plural}.{group}", "annotations": note},
        "spec": {"group": group, "scope": scope, "names": names, "versions": versions},
    }
    made = api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
    assert made.status == 201, made.message
    wait_until(kind, lambda: api.request("GET", f"/apis/{group}/{version}/{plural}").status == 200)
    return f"/apis/{group}/{version}"


def create(api: Api, path: str, kind: str, name: str, spec: str) -> None:
    version = "/".join(path.split("/")[2:4])
    body: Json = {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
    body["spec"] = yaml.safe_load(spec)
    done = api.request("POST", path, body)
    assert done.status == 201, done.message


def type_in(server: ApiServer, folder: Path, text: str) -> str:
    """Type a command that stands on a page; returns what it prints."""
    assert text in [command.text for command in commands("kubectl", "regroup")]
    return shell(server, folder, text)


def shell(server: ApiServer, folder: Path, text: str) -> str:
    path = f"{server.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KUBECONFIG": str(server.kubeconfig)}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", text],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_about_jobs_of_other_operators(server: ApiServer, tmp_path: Path) -> None:
    api = Api(server.kubeconfig)
    path = serve(api, "kubeflow.org", "v1", "PyTorchJob", "pytorchjobs", "Namespaced")
    create(api, f"{path}/namespaces/default/pytorchjobs", "PyTorchJob", "mnist", PYTORCH_JOB)
    type_in(server, tmp_path, "kubectl get pytorchjob mnist -o yaml | regroup convert - > job.yaml")
    made = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert (made["kind"], made["metadata"]["name"]) == ("TrainingJob", "mnist")
    assert made["spec"]["replicas"] == 2

    group, kind = "trainer.kubeflow.org", "ClusterTrainingRuntime"
    path = serve(api, group, "v1alpha1", kind, f"{kind.lower()}s", "Cluster")
    create(api, f"{path}/{kind.lower()}s", kind, "torch-distributed", RUNTIME)
    runtimes = "kubectl get clustertrainingruntime torch-distributed -o yaml > runtime.yaml"
    type_in(server, tmp_path, runtimes)
    (tmp_path / "trainjob.yaml").write_text(TRAIN_JOB)
    type_in(server, tmp_path, "regroup convert trainjob.yaml runtime.yaml > job.yaml")
    made = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert made["spec"]["image"] == "train:1"


def test_commands_of_the_runbooks_about_a_pod(server: ApiServer, tmp_path: Path) -> None:
    team = Namespace.make(Api(server.kubeconfig), "team")
    container = {"name": "trainer", "image": "train:1"}
    labels = {"regroup.dev/job": "gpt"}
    body = {
        "metadata": {"name": "gpt-w0-1", "labels": labels},
        "spec": {"containers": [container], "nodeName": "n1"},
    }
    assert team.api.request("POST", team.core("pods"), body).status == 201
    text = "kubectl -n NAMESPACE logs POD --previous"
    assert text in [command.text for command in commands("kubectl")]
    typed = text.replace("NAMESPACE", team.name).replace("POD", "gpt-w0-1")
    assert shell(server, tmp_path, typed) == "gpt-w0-1 has ended with an error\n"

    path = serve(team.api, "metrics.k8s.io", "v1beta1", "PodMetrics", "pods", "Namespaced")
    usage = {"name": "trainer", "usage": {"cpu": "250m", "memory": "300Mi"}}
    body = {
        "apiVersion": "metrics.k8s.io/v1beta1",
        "kind": "PodMetrics",
        "metadata": {"name": "gpt-w0-1", "labels": labels},
        "timestamp": "2026-01-01T00:00:00Z",
        "window": "30s",
        "containers": [usage],
    }
    made = team.api.request("POST", f"{path}/namespaces/{team.name}/pods", body)
    assert made.status == 201, made.message
    text = "kubectl -n NAMESPACE top pod -l regroup.dev/job=NAME --containers"
    assert text in [command.text for command in commands("kubectl")]
    typed = text.replace("NAMESPACE", team.name).replace("NAME", "gpt")
    _header, line = shell(server, tmp_path, typed).splitlines()
    assert line.split() == ["gpt-w0-1", "trainer", "250m", "300Mi"]


def test_jobs_with_an_internal_error_are_found_and_all_go_with_their_definition(
    server: ApiServer, tmp_path: Path
) -> None:
    install_definition(Api(server.kubeconfig))
    team = Namespace.make(Api(server.kubeconfig), "jobs")
    for name, reason in (("gpt", "InternalError"), ("other", "Training")):
        job = {"apiVersion": "regroup.dev/v1alpha1", "kind": "TrainingJob", "spec": SMALLEST}
        made = team.api.request("POST", team.jobs(), {**job, "metadata": {"name": name}})
        assert made.status == 201, made.message
        ready = condition("Ready", "False", reason, "a bug", 60)
        body = {**made.body, "status": running_status(conditions=[ready])}
        assert team.api.request("PUT", f"{team.jobs(name)}/status", body).status == 200
    page = INTERNAL_ERROR.read_text()
    (find,) = re.findall(r"```\n(kubectl get trainingjobs -A -o json .*?)```", page, re.DOTALL)
    assert shell(server, tmp_path, find) == "jobs/gpt\n"
    type_in(server, tmp_path, "kubectl delete crd trainingjobs.regroup.dev")
    # The API server takes the path away a moment after the definition.
    wait_until("the kind to go", lambda: team.api.request("GET", team.jobs()).status == 404)
