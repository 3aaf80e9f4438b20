"""Commands of the pages that no other test types, since they need what our clusters lack: other
operators, metrics, a container that failed. An API server has these as objects here.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from devcluster.apiserver import ApiServer
from regroup_trainer.system.spans import trace_id
from tests.support.cluster_objects import condition, running_status
from tests.support.documented_commands import first_job
from tests.support.kube_api import ROOT, Api, Json, Namespace, install_definition
from tests.support.opened_page import OpenedPage
from tests.support.page_terminal import PageTerminal
from tests.support.played_kubelet import SUCCESS, Played, played_node
from tests.support.small_foreign_jobs import PYTORCH_JOB, RUNTIME, TRAIN_JOB
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(900)]
WITH_INTERNAL_ERROR = (
    "kubectl get trainingjobs -A -o json | jq -r '.items[] "
    '| select(.status.conditions[]? | .type == "Ready" and .reason == "InternalError") '
    '| .metadata.namespace + "/" + .metadata.name\''
)
TRACE_OF_A_GENERATION = (
    "printf '%s\\0%s' \"$(kubectl get trainingjob gpt -o jsonpath={.metadata.uid})\" 1.2 | "
    "sha256sum | cut -c 1-32"
)


COORDINATOR = "gpt-c1"


def play(pod: str, words: Sequence[str]) -> Played:
    """What the pods of the node have written. The kubelet starts a coordinator's container again,
    and no worker's.
    """
    assert words[0] == "logs"
    if "previous=true" not in words[1]:
        return f"{pod} trains\n", "", SUCCESS
    if pod == COORDINATOR:
        return f"{pod} has ended with an error\n", "", SUCCESS
    return "", f'previous terminated container "trainer" in pod "{pod}" not found', SUCCESS


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer() as started, played_node(started, "n1", play):
        install_definition(Api(started.kubeconfig))
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


def create(api: Api, path: str, document: str) -> None:
    done = api.request("POST", path, yaml.safe_load(document))
    assert done.status == 201, done.message


@pytest.fixture
def terminal(server: ApiServer, tmp_path: Path) -> PageTerminal:
    """The shell of an administrator, in a clone."""
    (tmp_path / "manifests").symlink_to(ROOT / "manifests")
    return PageTerminal(tmp_path, {"KUBECONFIG": str(server.kubeconfig)}, (server.bin,))


def make_pod(team: Namespace, name: str, labels: dict[str, str], *first: str) -> None:
    """A pod of the played node, with these init containers."""
    containers = [{"name": "trainer", "image": "train:1"}]
    body: Json = {"metadata": {"name": name, "labels": labels}}
    body["spec"] = {"containers": containers, "nodeName": "n1"}
    body["spec"]["initContainers"] = [{"name": name, "image": "train:1"} for name in first]
    made = team.api.request("POST", team.core("pods"), body)
    assert made.status == 201, made.message


@pytest.mark.long
def test_commands_about_jobs_of_other_operators(server: ApiServer, terminal: PageTerminal) -> None:
    api = Api(server.kubeconfig)
    path = serve(api, "kubeflow.org", "v1", "PyTorchJob", "pytorchjobs", "Namespaced")
    create(api, f"{path}/namespaces/default/pytorchjobs", PYTORCH_JOB)
    terminal.type("kubectl get pytorchjob mnist -o yaml | regroup convert - > job.yaml")
    made = yaml.safe_load((terminal.folder / "job.yaml").read_text())
    assert (made["kind"], made["metadata"]["name"]) == ("TrainingJob", "mnist")
    assert made["spec"]["replicas"] == 2
    assert "mnist created" in terminal.type("kubectl trainingjob submit -f job.yaml")

    group, kind = "trainer.kubeflow.org", "ClusterTrainingRuntime"
    path = serve(api, group, "v1alpha1", kind, f"{kind.lower()}s", "Cluster")
    create(api, f"{path}/{kind.lower()}s", RUNTIME)
    runtimes = "kubectl get clustertrainingruntime torch-distributed -o yaml > runtime.yaml"
    terminal.type(runtimes)
    (terminal.folder / "trainjob.yaml").write_text(TRAIN_JOB)
    terminal.type("regroup convert trainjob.yaml runtime.yaml > job.yaml")
    made = yaml.safe_load((terminal.folder / "job.yaml").read_text())
    assert made["spec"]["image"] == "train:1"


def test_commands_of_the_runbooks_about_a_pod(server: ApiServer, terminal: PageTerminal) -> None:
    team = Namespace.make(Api(server.kubeconfig), "team")
    labels = {"regroup.dev/job": "gpt"}
    names = {"NAMESPACE": team.name, "POD": "gpt-w0-1"}
    of_coordinator = {**names, "POD": COORDINATOR}
    for pod in (names["POD"], COORDINATOR):
        make_pod(team, pod, labels)
    shown = terminal.type("kubectl -n NAMESPACE logs POD --tail 100", changes=names)
    assert shown == "gpt-w0-1 trains\n"
    former = "kubectl -n NAMESPACE logs POD --previous"
    assert terminal.type(former, changes=of_coordinator) == "gpt-c1 has ended with an error\n"
    code, shown = terminal.try_to_type(former, changes=names)
    assert (code, "not found" in shown) == (1, True), "a worker has no former log"

    mine = Namespace.make(Api(server.kubeconfig), "default")
    for pod, first in ((COORDINATOR, ()), ("gpt-w0-1", ("packages",))):
        make_pod(mine, pod, labels, *first)
    names = {"POD": COORDINATOR}
    ended = "gpt-c1 has ended with an error\n"
    assert terminal.type("kubectl logs POD --previous", changes=names) == ended
    names_of_both = {**names, "NAME": "trainer"}
    shown = terminal.type("kubectl logs POD -c NAME --previous", changes=names_of_both)
    assert shown == ended
    shown = terminal.type("kubectl logs POD -c packages", changes={"POD": "gpt-w0-1"})
    assert shown == "gpt-w0-1 trains\n"

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
    shown = terminal.type(text, changes={"NAMESPACE": team.name, "NAME": "gpt"})
    _header, line = shown.splitlines()
    assert line.split() == ["gpt-w0-1", "trainer", "250m", "300Mi"]


def test_the_first_job_of_a_cluster_is_watched(server: ApiServer, terminal: PageTerminal) -> None:
    claim = terminal.type("kubectl apply -f manifests/samples/shared-claim.yaml")
    assert "persistentvolumeclaim/shared created" in claim
    apply = "kubectl apply -f manifests/samples/smallest.yaml"
    both = "kubectl apply -f manifests/samples/smallest.yaml && kubectl get trainingjobs -w"
    with terminal.running(both) as until:
        until("trainingjob.regroup.dev/gpt created")
        until("NAME ")
    assert "trainingjob.regroup.dev/gpt unchanged" in terminal.type(apply)
    with terminal.running("kubectl get trainingjob gpt -w") as until:
        until("gpt ")

    found = terminal.type(TRACE_OF_A_GENERATION)
    uid = Namespace(Api(server.kubeconfig), "default").read()["metadata"]["uid"]
    assert found.strip() == trace_id(uid, "1.2")


def test_your_own_script_is_sent_to_a_cluster(server: ApiServer, terminal: PageTerminal) -> None:
    for name in ("train.py", "points.py"):
        (terminal.folder / name).write_text("")
    (terminal.folder / "job.yaml").write_text(first_job(ROOT / "docs/start/your-script.md"))
    terminal.type("kubectl create configmap mine --from-file=train.py --from-file=points.py")
    terminal.type("kubectl apply -f job.yaml")
    with terminal.running("kubectl get trainingjob mine -w") as until:
        until("mine ")
    team = Namespace.make(Api(server.kubeconfig), "default")
    labels = {"regroup.dev/job": "mine", "regroup.dev/role": "worker"}
    make_pod(team, "mine-w0-1", labels)
    shown = terminal.type("kubectl logs -f -l regroup.dev/job=mine,regroup.dev/role=worker")
    assert shown == "mine-w0-1 trains\n"

    with terminal.running("kubectl trainingjob ui", end=signal.SIGTERM) as until:
        page = OpenedPage(re.findall(r"http://\S+", until("token="))[0])
        assert "mine" in [job["name"] for job in page.read("/api/jobs")["jobs"]]


def test_jobs_with_an_internal_error_are_found_and_all_go_with_their_definition(
    server: ApiServer, terminal: PageTerminal
) -> None:
    team = Namespace.make(Api(server.kubeconfig), "jobs")
    for name, reason in (("gpt", "InternalError"), ("other", "Training")):
        job = {"apiVersion": "regroup.dev/v1alpha1", "kind": "TrainingJob", "spec": SMALLEST}
        made = team.api.request("POST", team.jobs(), {**job, "metadata": {"name": name}})
        assert made.status == 201, made.message
        ready = condition("Ready", "False", reason, "a bug", 60)
        body = {**made.body, "status": running_status(conditions=[ready])}
        assert team.api.request("PUT", f"{team.jobs(name)}/status", body).status == 200
    assert terminal.type(WITH_INTERNAL_ERROR) == "jobs/gpt\n"
    terminal.type("kubectl delete crd trainingjobs.regroup.dev")
    # The API server takes the path away a moment after the definition.
    wait_until("the kind to go", lambda: team.api.request("GET", team.jobs()).status == 404)
