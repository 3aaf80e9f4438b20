"""Functions that are sent to a real API server, whose jobs and pods the tests play."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from devcluster.apiserver import ApiServer
from devcluster.pki import Identity
from regroup import (
    AsyncJob,
    AsyncTrainingClient,
    ClusterError,
    Job,
    JobFailedError,
    PackageIndex,
    TrainingClient,
    TrainingClientError,
    TrainingJob,
)
from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.kubeconfig import Target
from regroup.training_client.kubernetes_job import KubernetesJob
from regroup_trainer.protocol.job_status import SERIES_PATH, Series, SeriesPoint
from tests.support.cluster_objects import condition, running_status
from tests.support.kube_api import Api, Json, Namespace, install_definition
from tests.support.operator_process import make_claim
from tests.support.played_kubelet import SUCCESS, Played, exit_status, played_node
from tests.support.reader_pods import readers, running_readers
from tests.support.user_rights import CLIENT_CALLS, Right, grant

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600)]
SECONDS = 60.0
SAVED = {"step": 120, "path": "/checkpoints/t/gpt-1/checkpoints/step-120", "problem": ""}
LISTED = [
    {**SAVED, "sizeBytes": 5, "resumable": True},
    {**SAVED, "step": 100, "problem": "its manifest is cut off", "resumable": False},
]
SERIES = Series(points=(SeriesPoint(time=1.0, step=7, world_size=2, loss=0.5),))
WEIGHTS = {"a.weight": torch.arange(12.0).reshape(3, 4), "b": torch.ones(2, dtype=torch.bfloat16)}
BROKEN = {"pod": ""}
"""The pod in which commands fail."""
KEPT = {"series": True}
"""Whether jobs have left their series on the volume."""
_numbers = itertools.count(1)


def greet(name: str = "x") -> None:
    print(name)


def play_print(path: str) -> Played:
    """A pod that prints what a coordinator has kept."""
    if KEPT["series"]:
        assert path.endswith("/series.json")
        return SERIES.model_dump_json(), "", SUCCESS
    return "", f"Traceback\nFileNotFoundError: {path}", exit_status(1)


def play(pod: str, words: Sequence[str]) -> Played:
    """What pods of the node do."""
    if pod == BROKEN["pod"]:
        return "", "no such volume", exit_status(1)
    if words[0] == "GET":
        assert words[1] == SERIES_PATH
        text = SERIES.model_dump_json()
        return f"HTTP/1.0 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}", "", SUCCESS
    if "-c" in words:
        return play_print(words[-1])
    if "export" in words:
        if words[-2:] == ["--step", "7"]:
            return "", "Error: --step 7: not in /v: choose one of 120", exit_status(1)
        content = save(WEIGHTS)
        checksum = hashlib.blake2b(content).hexdigest()
        return content, f"verified x\nstep 120 blake2b {checksum}\n", SUCCESS
    *_, module, verb, folder, form = words
    assert (module, verb, form) == ("regroup_trainer.checkpoint", "list", "--json")
    assert "-reader-" in pod or folder == "/checkpoints/t/gpt-1"
    return json.dumps(LISTED), "", SUCCESS


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer() as server, played_node(server, "n1", play):
        install_definition(Api(server.kubeconfig))
        yield server


@pytest.fixture
def team(server: ApiServer) -> Namespace:
    """A fresh namespace."""
    return Namespace.make(Api(server.kubeconfig), f"python-{next(_numbers)}")


@pytest.fixture
def client(team: Namespace) -> Iterator[TrainingClient]:
    with TrainingClient(namespace=team.name, kubeconfig=team.api.kubeconfig) as client:
        yield client


@pytest.fixture
def gpt(client: TrainingClient) -> Job:
    """A job of two workers."""
    return client.train(greet, workers=(1, 3), claim="shared", name="gpt")


def allow(team: Namespace, rules: Mapping[str, Mapping[str, list[str]]]) -> None:
    """Give mallory these rights: group -> resource -> verbs."""
    group = "rbac.authorization.k8s.io"
    where = f"/apis/{group}/v1/namespaces/{team.name}"
    allowed = [
        {"apiGroups": [api], "resources": [resource], "verbs": verbs}
        for api, resources in rules.items()
        for resource, verbs in resources.items()
    ]
    team.api.request("POST", f"{where}/roles", {"metadata": {"name": "jobs"}, "rules": allowed})
    binding = {
        "metadata": {"name": "jobs"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "jobs"},
        "subjects": [{"kind": "User", "name": "mallory", "apiGroup": group}],
    }
    team.api.request("POST", f"{where}/rolebindings", binding)


def code_of(team: Namespace, name: str = "gpt") -> Json:
    found = team.api.request("GET", team.core(f"configmaps/{name}-code"))
    return found.body if found.status == 200 else {}


def add_pod(team: Namespace, name: str, role: str) -> None:
    """A pod of the job that runs, restricted as those of the operator."""
    labels = {"regroup.dev/job": "gpt", "regroup.dev/role": role}
    command = ["python", "-m", "regroup_trainer.agent"]
    inside = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "trainer", "image": "x", "command": command, "securityContext": inside}
    outside = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    body = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], "nodeName": "n1", "securityContext": outside},
    }
    assert team.api.request("POST", team.core("pods"), body).status == 201
    status = {"status": {"phase": "Running"}}
    path = team.core(f"pods/{name}/status")
    done = team.api.request("PATCH", path, status, "application/merge-patch+json")
    assert done.status == 200, done.message


# --- submission -----------------------------------------------------------------------------------


def test_a_function_is_sent_in_a_config_map_that_its_job_owns(team: Namespace, gpt: Job) -> None:
    job, code = team.read(), code_of(team)
    assert gpt.code == "function greet is sent as source: it is self-contained"
    assert job["metadata"]["annotations"]["regroup.dev/code-form"] == gpt.code
    assert job["spec"]["suspend"] is False
    assert (job["spec"]["replicas"], job["spec"]["elasticPolicy"]["minReplicas"]) == (3, 1)
    (owner,) = code["metadata"]["ownerReferences"]
    assert owner["uid"] == job["metadata"]["uid"]
    assert "def greet" in base64.b64decode(code["binaryData"]["main.py"]).decode()


def test_packages_and_their_index(team: Namespace, client: TrainingClient) -> None:
    index = PackageIndex(secret="pip")
    client.train(greet, name="gpt", packages=["einops"], package_index=index)
    assert "regroup-install-packages.py" in code_of(team)["binaryData"]
    pod = team.read()["spec"]["template"]["spec"]
    assert [c["name"] for c in pod["initContainers"]] == ["packages"]


def test_a_typed_job_is_sent_as_it_is(team: Namespace, client: TrainingClient) -> None:
    job = client.train(job=TrainingJob("gpt", {"trainer": {}, "suspend": True}))
    assert job.code == ""
    assert team.read()["spec"] == {"replicas": 1, "trainer": {}, "suspend": True}
    assert code_of(team) == {}
    assert client.job("gpt").status.phase is None


def test_a_job_that_is_to_wait_stays_suspended(team: Namespace, client: TrainingClient) -> None:
    client.train(greet, job=TrainingJob("gpt", {"suspend": True}))
    assert team.read()["spec"]["suspend"] is True
    assert code_of(team)


class CutOffError(BaseException):
    """The client's process ends."""


def cut_off(*_arguments: Any, **_options: Any) -> None:
    raise CutOffError


@pytest.mark.parametrize("write", ["create_job", "create_config_map", "patch_job"])
def test_a_client_that_dies_leaves_nothing_that_waits_for_code(
    team: Namespace, client: TrainingClient, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    """Before any of its writes. The same call goes on from there."""
    with monkeypatch.context() as patched:
        patched.setattr(ClusterApi, write, cut_off)
        with pytest.raises(CutOffError):
            client.train(greet, name="gpt")
    has_job = team.api.request("GET", team.jobs("gpt")).status == 200
    assert has_job or not code_of(team)
    assert not has_job or team.read()["spec"]["suspend"] is True
    client.train(greet, name="gpt")
    assert team.read()["spec"]["suspend"] is False
    assert code_of(team)


def test_another_job_of_that_name_is_left_alone(
    team: Namespace, client: TrainingClient, gpt: Job
) -> None:
    with pytest.raises(ClusterError, match="already exists"):
        client.train(greet, workers=(1, 3), claim="shared", name="gpt")  # it was resumed
    gpt.suspend()
    with pytest.raises(ClusterError, match="already exists"):
        client.train(greet, workers=(1, 2), claim="shared", name="gpt")  # it says something else
    team.write_status({"coordinatorTerm": 1})
    with pytest.raises(ClusterError, match="already exists"):
        client.train(greet, workers=(1, 3), claim="shared", name="gpt")  # somebody suspended it
    assert team.read()["spec"]["suspend"] is True


def test_a_config_map_of_somebody_else_is_not_used(team: Namespace, client: TrainingClient) -> None:
    body = {"metadata": {"name": "gpt-code"}, "data": {"main.py": "print('theirs')"}}
    team.api.request("POST", team.core("configmaps"), body)
    with pytest.raises(ClusterError, match='configmaps "gpt-code" already exists'):
        client.train(greet, name="gpt")
    assert team.api.request("GET", team.jobs("gpt")).status == 404


def test_a_job_whose_code_is_refused_is_deleted_again(server: ApiServer, team: Namespace) -> None:
    allow(team, {"regroup.dev": {"trainingjobs": ["create", "delete"]}})
    config = server.kubeconfig_of(Identity("mallory", "mallory"))
    refused = pytest.raises(ClusterError, match="cannot create configmaps gpt-code")
    with TrainingClient(namespace=team.name, kubeconfig=config) as client, refused:
        client.train(greet, name="gpt")
    assert team.api.request("GET", team.jobs("gpt")).status == 404


# --- a job that runs ------------------------------------------------------------------------------


def test_it_is_scaled_suspended_resumed_and_deleted(team: Namespace, gpt: Job) -> None:
    gpt.scale(2)
    assert team.read()["spec"]["replicas"] == 2
    with pytest.raises(ClusterError, match="must not be above"):
        gpt.scale(9)
    with pytest.raises(TrainingClientError, match=r"workers: 0: give a number from 1"):
        gpt.scale(0)
    gpt.suspend()
    assert team.read()["spec"]["suspend"] is True
    gpt.resume()
    assert team.read()["spec"]["suspend"] is False
    gpt.delete()
    with pytest.raises(ClusterError, match="trainingjob gpt not found"):
        _ = gpt.status


def test_waiting_for_a_phase_and_for_the_end(
    team: Namespace, gpt: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    team.write_status(running_status())
    status = gpt.wait(SECONDS, phase="Running", progress=True)
    assert status.progress.step == 120
    assert "[step=120/500" in capsys.readouterr().err
    with pytest.raises(TimeoutError, match="job gpt is Running after 1 s, and not Succeeded"):
        gpt.wait(1)
    team.write_status(running_status(phase="Failed", message="exit code 1 on every try"))
    with pytest.raises(JobFailedError, match="gpt has failed: exit code 1 on every try"):
        gpt.wait(SECONDS)
    team.write_status(running_status(phase="Succeeded"))
    assert gpt.wait(SECONDS, phase="Suspended").phase == "Succeeded"


def test_waiting_for_a_job_that_the_operator_refuses(team: Namespace, gpt: Job) -> None:
    ready = condition("Ready", "False", "InvalidSpec", "spec.image: is absent")
    fields = {"conditions": [ready], "message": "spec.image: is absent", "observedGeneration": 9}
    team.write_status(running_status(phase="Pending", **fields))
    with pytest.raises(TrainingClientError, match=r"gpt does not start: spec\.image: is absent"):
        gpt.wait(SECONDS)


def test_metrics_come_from_the_coordinator(team: Namespace, gpt: Job) -> None:
    with pytest.raises(TrainingClientError, match="has no coordinator that runs"):
        gpt.metrics()
    add_pod(team, "gpt-c1", "coordinator")
    assert gpt.metrics() == list(SERIES.points)


def test_checkpoints_are_listed_by_a_worker_or_else_by_the_status(
    team: Namespace, gpt: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpt.checkpoints() == []
    newest = {"lastStep": 120, "path": SAVED["path"], "sizeBytes": 5}
    team.write_status(running_status(checkpoint=newest))
    assert [(c.step, c.size_bytes) for c in gpt.checkpoints()] == [(120, 5)]
    add_pod(team, "gpt-w0-1", "worker")
    listed = gpt.checkpoints()
    assert [(c.step, c.resumable) for c in listed] == [(120, True), (100, False)]
    monkeypatch.setitem(BROKEN, "pod", "gpt-w0-1")
    with pytest.raises(TrainingClientError, match="gpt-w0-1 cannot list them: no such volume"):
        gpt.checkpoints()


# --- weights --------------------------------------------------------------------------------------


@pytest.fixture
def ran(team: Namespace) -> Iterator[list[Json]]:
    """The pods that read for a moment, which get a node and run."""
    with running_readers(team, "n1") as ran:
        yield ran


@pytest.fixture
def saved(team: Namespace, gpt: Job, ran: list[Json]) -> Job:
    """A job of the image of the installation with a checkpoint, in a restricted namespace with a
    claim.
    """
    assert ran == []
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    path = f"/api/v1/namespaces/{team.name}"
    team.api.request("PATCH", path, label, "application/merge-patch+json")
    make_claim(team)
    images = {"trainer": "trainer:1", "coordinator": "operator:1"}
    newest = {"lastStep": 120, "path": SAVED["path"]}
    team.write_status(running_status(phase="Suspended", lastImages=images, checkpoint=newest))
    return gpt


def test_weights_come_from_a_pod_of_the_moment(
    team: Namespace, saved: Job, ran: list[Json]
) -> None:
    weights = saved.load_state_dict()
    assert weights.keys() == WEIGHTS.keys()
    assert all(torch.equal(weights[name], WEIGHTS[name]) for name in WEIGHTS)
    assert weights["b"].dtype == torch.bfloat16
    plain = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "x", "image": "x"}]}}
    assert "restricted" in team.api.request("POST", team.core("pods"), plain).message
    (reader,) = ran
    assert reader["metadata"]["ownerReferences"][0]["uid"] == team.read()["metadata"]["uid"]
    assert "regroup.dev/job" not in reader["metadata"]["labels"]
    assert readers(team) == []


def test_checkpoints_of_a_job_that_rests_come_from_a_pod_of_the_moment(
    server: ApiServer,
    team: Namespace,
    saved: Job,
    ran: list[Json],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert [one.step for one in saved.checkpoints()] == [120, 100]
    assert len(ran) == 1
    assert readers(team) == []
    allow(team, {"regroup.dev": {"trainingjobs": ["get"]}, "": {"pods": ["list"]}})
    config = server.kubeconfig_of(Identity("mallory", "mallory"))
    with TrainingClient(namespace=team.name, kubeconfig=config) as client:
        assert [one.step for one in client.job(saved.name).checkpoints()] == [120]
    assert "only the newest is shown: " in caplog.text
    assert 'cannot create resource "pods"' in caplog.text


def test_metrics_of_a_job_that_rests_come_from_a_pod_of_the_moment(
    team: Namespace, saved: Job, ran: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert saved.metrics() == list(SERIES.points)
    assert len(ran) == 1
    assert readers(team) == []
    monkeypatch.setitem(KEPT, "series", False)
    with pytest.raises(TrainingClientError, match="left no metrics on claim shared: FileNotFound"):
        saved.metrics()
    assert readers(team) == []


async def test_weights_come_without_blocking_an_event_loop(saved: Job) -> None:
    weights = await AsyncJob(saved).load_state_dict(120)
    assert torch.equal(weights["a.weight"], WEIGHTS["a.weight"])


def test_weights_that_are_refused_leave_no_pod(
    team: Namespace, saved: Job, ran: list[Json]
) -> None:
    with pytest.raises(
        TrainingClientError, match=r"--step 7: not in /v: choose one of 120 \(in pod"
    ):
        saved.load_state_dict(7)
    with pytest.raises(TrainingClientError, match="have 52 bytes, and at most 51 are allowed"):
        saved.load_state_dict(max_bytes=51)
    assert len(ran) == 2
    assert readers(team) == []


@pytest.mark.parametrize(
    ("verbs", "refused"),
    [
        (["list"], 'cannot create resource "pods"'),
        (["list", "create", "get", "delete"], 'cannot (get|create) resource "pods/exec"'),
    ],
)
def test_a_user_without_the_rights_learns_which(
    server: ApiServer, team: Namespace, saved: Job, verbs: list[str], refused: str
) -> None:
    """Without the right to see the claim, its pod shows whether it is there."""
    allow(team, {"regroup.dev": {"trainingjobs": ["get"]}, "": {"pods": verbs}})
    config = server.kubeconfig_of(Identity("mallory", "mallory"))
    with TrainingClient(namespace=team.name, kubeconfig=config) as client:
        job = client.job(saved.name)
        with pytest.raises(ClusterError, match=f"{refused}.*: ask an administrator"):
            job.load_state_dict()
    assert readers(team) == []


def times_out(job: KubernetesJob) -> None:
    with pytest.raises(TimeoutError):
        job.wait(1, progress=False)


def send(beside: KubernetesJob, **given: Any) -> None:
    """Another job, as the user of this one."""
    client = TrainingClient(namespace=beside.namespace)
    vars(client._backend)["_api"] = beside.api
    client.train(name=f"sent-{next(_numbers)}", **given)


AS_USER: dict[str, Callable[[KubernetesJob], object]] = {
    "`train(job=...)`": lambda job: send(job, job=TrainingJob("x", {"trainer": {}})),
    "`train(func)`, `train(script=...)`": lambda job: send(job, func=greet),
    "`client.job()`, `status`": lambda job: job.status,
    "`wait()`": times_out,
    "`logs()`": lambda job: list(job.logs()),
    "`metrics()` while it trains": lambda job: job.metrics(),
    "`metrics()` at rest": lambda job: job.metrics(),
    "`load_state_dict()`": lambda job: job.load_state_dict(),
    "`checkpoints()`": lambda job: job.checkpoints(),
    "`scale()`": lambda job: job.scale(2),
    "`suspend()`, `resume()`": lambda job: job.resume(),
    "`delete()`": lambda job: job.delete(),
}
"""Row of the page's table of rights -> the call."""
DONE_WITHOUT = {Right("get", "pods/log"), Right("delete", "pods")}
"""A log that may not be read is named, and the others are read. A pod that may not be deleted ends
by itself.
"""


@pytest.mark.parametrize("call", CLIENT_CALLS)
def test_the_rights_that_the_page_names_for_a_call_are_enough_and_all_needed(
    server: ApiServer, team: Namespace, saved: Job, call: str
) -> None:
    if call == "`metrics()` while it trains":
        add_pod(team, "gpt-c1", "coordinator")
    needed, _ = CLIENT_CALLS[call]
    for lacking in sorted(needed - DONE_WITHOUT):
        with (
            as_a_user(server, team, needed - {lacking}) as job,
            pytest.raises(ClusterError, match=re.escape(lacking.resource)),
        ):
            AS_USER[call](job)
    with as_a_user(server, team, needed) as job:
        AS_USER[call](job)


@contextmanager
def as_a_user(
    server: ApiServer, team: Namespace, rights: frozenset[Right]
) -> Iterator[KubernetesJob]:
    """The job, as a new user with these rights reaches it."""
    user = f"user-{next(_numbers)}"
    grant(team, user, rights)
    target = Target(str(server.kubeconfig_of(Identity(user, user))), None, team.name)
    with closing(ClusterApi(target)) as api:
        yield KubernetesJob(api, team.name, "gpt")


def test_a_reader_that_does_not_start_is_named_and_deleted(
    team: Namespace, gpt: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TrainingClientError, match="job gpt has no checkpoint yet"):
        gpt.load_state_dict()
    newest = {"lastStep": 120, "path": SAVED["path"]}
    team.write_status(running_status(images={"trainer": "x"}, checkpoint=newest))
    with pytest.raises(TrainingClientError, match="claim shared of job gpt is gone"):
        gpt.load_state_dict()
    make_claim(team)
    monkeypatch.setattr("regroup.diagnosis.job_reader.START_SECONDS", 0.0)
    with pytest.raises(
        ClusterError, match=r"gpt-reader-\w+ does not run: Pending: nothing says why"
    ):
        gpt.load_state_dict()
    assert readers(team) == []


async def test_the_same_without_blocking_an_event_loop(team: Namespace) -> None:
    options: Mapping[str, Any] = {"namespace": team.name, "kubeconfig": team.api.kubeconfig}
    async with AsyncTrainingClient(**options) as client:
        job = await client.train(greet, name="gpt")
        team.write_status(running_status())
        assert (await job.wait(SECONDS, phase="Running")).phase == "Running"
        with pytest.raises(TimeoutError):
            await job.wait(0.5)
        await job.scale(1)
        await job.delete()


def test_without_a_cluster_it_is_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("{}")
    with pytest.raises(ClusterError, match="give a file with --kubeconfig"):
        TrainingClient(kubeconfig=config).job("gpt")
