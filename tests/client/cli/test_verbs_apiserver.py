"""The verbs of `kubectl trainingjob` on a real API server, with statuses that the tests write."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from devcluster.apiserver import ApiServer
from devcluster.pki import Identity
from regroup.cli.kubectl_trainingjob import trainingjob
from regroup.converting.inline_code import code_map, mount_code
from regroup.kubernetes.job_description import EVENTS_SHOWN
from regroup_operator.api.names import labels
from regroup_operator.api.resource import API_VERSION, KIND
from regroup_operator.api.timestamps import format_time
from regroup_trainer.protocol.agent_messages import RankStack, WorkerStacks
from tests.support.cluster_objects import condition, event_object, running_status, waiting_status
from tests.support.kube_api import Api, Json, Namespace, install_definition
from tests.support.operator_process import make_claim
from tests.support.played_kubelet import SUCCESS, Played, exit_status, played_node
from tests.support.reader_pods import readers, running_readers
from tests.support.specs import SMALLEST, VALID_JOB
from tests.support.user_rights import VERBS, Right, grant, named_in, needed_by
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600)]
_numbers = itertools.count(1)
PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        install_definition(Api(server.kubeconfig))
        yield server


@pytest.fixture
def team(server: ApiServer) -> Namespace:
    """A fresh namespace."""
    return Namespace.make(Api(server.kubeconfig), f"verbs-{next(_numbers)}")


@pytest.fixture
def gpt(team: Namespace) -> Namespace:
    """The namespace, with a job that trains."""
    assert team.create(SMALLEST).status == 201
    assert team.write_status(running_status()).status == 200
    return team


def run(
    team: Namespace, *arguments: str, kubeconfig: Path | None = None, stdin: str = ""
) -> Result:
    """Run a verb in this process."""
    config = str(kubeconfig or team.api.kubeconfig)
    flags = ("--kubeconfig", config, "-n", team.name, *arguments)
    return CliRunner(env={"COLUMNS": "80"}).invoke(trainingjob, flags, input=stdin)


def good(done: Result, code: int = 0) -> str:
    assert done.exit_code == code, done.output
    return str(done.output)


# --- show -----------------------------------------------------------------------------------------


def test_get_lists_jobs(gpt: Namespace) -> None:
    header, line = good(run(gpt, "get")).splitlines()
    assert header.startswith("NAME   PHASE     WORKERS")
    assert line.split()[:4] == ["gpt", "Running", "3/3", "120/500"]
    assert gpt.name in good(run(gpt, "get", "-A"))
    assert good(run(gpt, "get", "-o", "name")) == "trainingjob.regroup.dev/gpt\n"
    assert "GENERATION" in good(run(gpt, "get", "gpt", "-o", "wide"))


def test_get_for_programs_is_what_kubectl_prints(gpt: Namespace) -> None:
    one = json.loads(good(run(gpt, "get", "gpt", "-o", "json")))
    assert one["metadata"]["name"] == "gpt"
    assert "managedFields" not in one["metadata"]
    several = yaml.safe_load(good(run(gpt, "get", "-o", "yaml")))
    assert (several["kind"], several["items"]) == ("List", [one])


SHOWING = ("get", "status", "describe", "why", "timeline", "top")
CHANGING = (
    ("scale", "gpt", "--replicas", "3", "--dry-run"),
    ("suspend", "gpt", "--dry-run"),
    ("resume", "gpt", "--dry-run"),
)


@pytest.mark.parametrize(
    "call", [*((verb, *(("gpt",) if verb != "top" else ())) for verb in SHOWING), *CHANGING]
)
def test_each_form_of_output_is_what_it_says(gpt: Namespace, call: tuple[str, ...]) -> None:
    for number in range(EVENTS_SHOWN + 1):
        make_event(gpt, f"Event{number}", "happens", "TrainingJob", "gpt")

    def printed(*form: str, code: int = 0) -> str:
        done = run(gpt, *call, *form)
        assert done.exit_code == code, done.output
        return done.stdout if code == 0 else done.output

    as_json, as_yaml = json.loads(printed("-o", "json")), yaml.safe_load(printed("-o", "yaml"))
    assert as_json
    assert as_json.keys() == as_yaml.keys()
    assert printed("-o", "name") == "trainingjob.regroup.dev/gpt\n"
    if call[0] in SHOWING and call[0] != "why":
        assert len(printed("-o", "wide")) > len(printed())
    else:
        assert "'wide' is not one of" in printed("-o", "wide", code=2)


def test_a_job_that_is_deep_hides_no_other(gpt: Namespace) -> None:
    """A template may hold anything, also what Python's decoder cannot take."""
    template = {"metadata": {"annotations": {}}, "spec": {"x": "DEEP"}}
    body = {"apiVersion": "regroup.dev/v1alpha1", "kind": "TrainingJob"}
    job = {**body, "metadata": {"name": "deep"}, "spec": {**SMALLEST, "template": template}}
    text = json.dumps(job).replace('"DEEP"', '{"a":' * 2000 + "1" + "}" * 2000)
    assert gpt.api.request("POST", gpt.jobs(), text).status == 201
    lines = good(run(gpt, "get")).splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "deep", "gpt"]


def test_an_empty_namespace_is_no_error(team: Namespace) -> None:
    assert good(run(team, "get")) == f"No trainingjobs found in namespace {team.name}.\n"
    assert json.loads(good(run(team, "get", "-o", "json")))["items"] == []


@pytest.mark.parametrize(
    "verb", ["get", "status", "describe", "why", "timeline", "logs", "suspend"]
)
def test_a_job_that_is_not_there_is_one_sentence(team: Namespace, verb: str) -> None:
    assert good(run(team, verb, "nobody"), 1) == (
        f"Error: trainingjob nobody not found in namespace {team.name}: "
        "`kubectl trainingjob get -A` lists all\n"
    )


def test_status_and_describe_show_what_the_status_says(gpt: Namespace) -> None:
    text = good(run(gpt, "status", "gpt"))
    assert "step 120 of 500 (24%)" in text
    assert json.loads(good(run(gpt, "status", "gpt", "-o", "json")))["step"] == 120
    make_event(gpt, "WorkerLost", "worker gpt-w1-1 is lost", "TrainingJob", "gpt")
    make_event(gpt, "Unrelated", "of a pod", "Pod", "gpt")
    described = good(run(gpt, "describe", "gpt"))
    assert "WorkerLost" in described
    assert "Unrelated" not in described
    assert max(map(len, described.splitlines())) <= 80
    report = yaml.safe_load(good(run(gpt, "describe", "gpt", "-o", "yaml")))
    assert [event["reason"] for event in report["events"]] == ["WorkerLost"]


def test_the_exit_code_of_status_follows_the_phase(gpt: Namespace) -> None:
    for phase, code in (("Failed", 3), ("Suspended", 4), ("Pending", 5), ("Succeeded", 0)):
        gpt.write_status(running_status(phase=phase))
        good(run(gpt, "status", "gpt"), code)
        assert json.loads(good(run(gpt, "status", "gpt", "-o", "json"), code))["exitCode"] == code


def test_status_watches_until_the_job_ends(gpt: Namespace) -> None:
    """The job fails once the first line is there."""
    results: list[Result] = []
    watching = threading.Thread(target=lambda: results.append(run(gpt, "status", "gpt", "-w")))
    watching.start()
    failing = running_status(phase="Failed", message="too many restarts")
    for step in itertools.count(121):
        progress = {"step": step, "totalSteps": 500}
        gpt.write_status(running_status(progress=progress))
        if step > 123:
            break
    gpt.write_status(failing)
    wait_until("the end of the watch", lambda: not watching.is_alive(), seconds=120)
    text = good(results[0], 3)
    assert text.splitlines()[-1].endswith("3/3 workers, step 120/500: too many restarts")


def test_a_watch_ends_with_its_time(gpt: Namespace) -> None:
    text = good(run(gpt, "status", "gpt", "-w", "--timeout", "1s"))
    assert "Running, 3/3 workers, step 120/500" in text
    assert "stopped watching after 1 s; the job goes on" in text


# --- change ---------------------------------------------------------------------------------------


def test_submit_creates_the_job_of_a_file(team: Namespace, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(VALID_JOB)
    text = good(run(team, "submit", "-f", str(file), "--dry-run"))
    assert text == "trainingjob.regroup.dev/gpt created (server dry run)\n"
    assert good(run(team, "get")).startswith("No trainingjobs")
    assert good(run(team, "submit", "-f", str(file))) == "trainingjob.regroup.dev/gpt created\n"
    assert team.read()["spec"]["replicas"] == 3
    again = good(run(team, "submit", "-f", str(file)), 1)
    assert "already exists" in again
    assert "Traceback" not in again


def test_submit_creates_a_job_with_the_config_map_that_it_mounts(
    team: Namespace, tmp_path: Path
) -> None:
    main = {"name": "trainer", "command": ["python", "/regroup/code/main.py"]}
    pod: dict[str, Any] = {"containers": [main]}
    mount_code(pod, main, "gpt")
    spec = {"replicas": 1, "image": "x", "template": {"spec": pod}}
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "gpt"}, "spec": spec}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all([code_map({"name": "gpt"}, "print()"), job]))
    place = team.core("configmaps/gpt-code")
    good(run(team, "submit", "-f", str(file), "--dry-run"))
    assert team.api.request("GET", place).status == 404
    assert good(run(team, "submit", "-f", str(file))) == "trainingjob.regroup.dev/gpt created\n"
    code = team.api.request("GET", place).body
    (owner,) = code["metadata"]["ownerReferences"]
    assert owner["uid"] == team.read()["metadata"]["uid"]
    assert code["data"] == {"main.py": "print()\n"}
    assert team.read()["spec"]["suspend"] is False


def test_submit_creates_the_job_of_flags(team: Namespace) -> None:
    flags = ("--model", "gpt:1m", "--steps", "9", "--replicas", "3", "--min-replicas", "2")
    done = run(team, "submit", "mine", *flags, "--claim", "shared", "-o", "json")
    spec = json.loads(good(done))["spec"]
    assert (spec["replicas"], spec["trainer"]["training"]["steps"]) == (3, 9)
    command = ("--image", "x:1", "--", "python", "train.py", "--lr", "1e-4")
    good(run(team, "submit", "script", *command))
    (container,) = team.read("script")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "train.py", "--lr", "1e-4"]


def test_what_the_api_server_refuses_is_named_with_the_field(gpt: Namespace) -> None:
    text = good(run(gpt, "scale", "gpt", "--replicas", "9"), 1)
    assert "cannot patch trainingjobs/scale gpt" in text
    assert "spec.replicas must not be above spec.elasticPolicy.maxReplicas" in text


def test_scale_suspend_and_resume_change_the_spec(gpt: Namespace) -> None:
    text = good(run(gpt, "scale", "gpt", "--replicas", "4"))
    assert text == "trainingjob.regroup.dev/gpt scaled to 4 workers\n"
    good(run(gpt, "suspend", "gpt", "--dry-run"))
    assert not gpt.read()["spec"].get("suspend")
    assert good(run(gpt, "suspend", "gpt")) == "trainingjob.regroup.dev/gpt suspend requested\n"
    assert (gpt.read()["spec"]["replicas"], gpt.read()["spec"]["suspend"]) == (4, True)
    good(run(gpt, "resume", "trainingjob/gpt"))
    assert gpt.read()["spec"]["suspend"] is False


def answer_request(team: Namespace, outcome: str, message: str) -> None:
    """Note what became of a request, as the operator does."""

    def asked() -> str | None:
        annotations = team.read()["metadata"].get("annotations") or {}
        return annotations.get("regroup.dev/checkpoint-now")

    value = wait_until("the request", asked, seconds=60)
    request = {"name": "CheckpointNow", "value": value, "time": format_time(datetime.now(UTC))}
    for given in ("Pending", outcome):
        status = running_status(requests=[{**request, "outcome": given, "message": message}])
        assert team.write_status(status).status == 200


@pytest.mark.parametrize(
    ("outcome", "message", "code"),
    [("Done", "step 121 is saved to /volume/step-121", 0), ("Refused", "the job has ended", 1)],
)
def test_checkpoint_now_waits_for_what_becomes_of_it(
    gpt: Namespace, outcome: str, message: str, code: int
) -> None:
    answering = threading.Thread(target=answer_request, args=(gpt, outcome, message))
    answering.start()
    text = good(run(gpt, "checkpoint", "now", "gpt"), code)
    answering.join()
    assert text == f"trainingjob.regroup.dev/gpt checkpoint {outcome.lower()}: {message}\n"


def test_a_restart_names_its_step_after_a_question(gpt: Namespace) -> None:
    command = ("restart", "gpt", "--no-wait", "--from-checkpoint")
    assert "This gives up what gpt has trained since the newest checkpoint." in good(
        run(gpt, *command, stdin="n\n"), 1
    )
    assert "annotations" not in gpt.read()["metadata"]
    text = good(run(gpt, *command, "100", "--yes"))
    assert text.endswith("trainingjob.regroup.dev/gpt restart requested\n")
    asked = gpt.read()["metadata"]["annotations"]["regroup.dev/restart-from-checkpoint"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00@100", asked)
    assert len(asked) <= 64
    good(run(gpt, *command, "--yes"))
    newest = gpt.read()["metadata"]["annotations"]["regroup.dev/restart-from-checkpoint"]
    assert "@" not in newest


def test_checkpoint_now_need_not_wait_and_says_when_it_waited_in_vain(gpt: Namespace) -> None:
    text = good(run(gpt, "checkpoint", "now", "gpt", "--no-wait"))
    assert text == "trainingjob.regroup.dev/gpt checkpoint requested\n"
    first = gpt.read()["metadata"]["annotations"]["regroup.dev/checkpoint-now"]
    report = json.loads(good(run(gpt, "checkpoint", "now", "gpt", "--no-wait", "-o", "json")))
    assert (report["name"], report["outcome"]) == ("CheckpointNow", "Pending")
    assert report["value"] > first, "each is another request"
    assert "gpt has not done it within 1 s, and will when it can" in good(
        run(gpt, "checkpoint", "now", "gpt", "--timeout", "1s"), 1
    )


# --- explain --------------------------------------------------------------------------------------


def make_pod(
    team: Namespace, name: str, node: str = "", env: dict[str, str] | None = None, **status: Any
) -> None:
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    container = {"name": "trainer", "image": "x", "env": variables}
    pod: Json = {
        "metadata": {
            "name": name,
            "labels": {"regroup.dev/job": "gpt", "regroup.dev/role": "worker"},
        },
        "spec": {"containers": [container], **({"nodeName": node} if node else {})},
    }
    made = team.api.request("POST", team.core("pods"), pod)
    assert made.status == 201, made.message
    written = {**made.body, "status": status}
    assert team.api.request("PUT", team.core(f"pods/{name}/status"), written).status == 200


def make_event(team: Namespace, reason: str, message: str, kind: str, name: str) -> None:
    event = event_object(reason, message, kind, name=name)
    event["metadata"] = {"name": f"{name}.{next(_numbers)}"}
    event["involvedObject"]["namespace"] = team.name
    event["lastTimestamp"] = format_time(datetime.now(UTC))
    assert team.api.request("POST", team.core("events"), event).status == 201


@pytest.fixture
def waiting(team: Namespace) -> Namespace:
    """A job that the scheduler cannot place."""
    assert team.create(SMALLEST).status == 201
    assert team.write_status(waiting_status("Unschedulable", "pod gpt-w0-1 has no node")).status
    unplaced = condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")
    make_pod(team, "gpt-w0-1", phase="Pending", conditions=[unplaced])
    make_event(team, "FailedScheduling", "0/3 nodes: too small", "Pod", "gpt-w0-1")
    make_event(team, "Unrelated", "of another job", "Pod", "other-w0-1")
    return team


def test_why_prints_the_operators_reason_and_the_evidence(waiting: Namespace) -> None:
    text = " ".join(good(run(waiting, "why", "gpt")).split())
    assert text.startswith("gpt does not train: Unschedulable: pod gpt-w0-1 has no node Evidence:")
    assert "- pod gpt-w0-1: has no node for" in text
    assert "- event FailedScheduling about pod gpt-w0-1" in text
    assert "of another job" not in text
    assert "Lease of the operator: not found" in text
    report = json.loads(good(run(waiting, "why", "gpt", "-o", "json")))
    assert (report["reason"], report["judgedBy"]) == ("Unschedulable", "operator")


def test_why_judges_itself_while_nobody_renews_the_lease(waiting: Namespace) -> None:
    spec = {
        "holderIdentity": "regroup-1",
        "leaseDurationSeconds": 15,
        "renewTime": "2020-01-01T00:00:00.000000Z",
    }
    path = f"/apis/coordination.k8s.io/v1/namespaces/{waiting.name}/leases"
    made = waiting.api.request(
        "POST", path, {"metadata": {"name": "regroup-operator"}, "spec": spec}
    )
    assert made.status == 201, made.message
    text = " ".join(good(run(waiting, "why", "gpt", "--operator-namespace", waiting.name)).split())
    assert text.startswith("gpt, without an operator: Unschedulable: pod gpt-w0-1 cannot be")
    assert "the operator is away" in text


def test_timeline_draws_the_recoveries(gpt: Namespace) -> None:
    text = good(run(gpt, "timeline", "gpt"))
    assert "gpt: 2 recoveries in" in text
    assert len(json.loads(good(run(gpt, "timeline", "gpt", "-o", "json")))["recoveries"]) == 2


def test_top_looks_once_without_a_terminal(gpt: Namespace) -> None:
    header, line = good(run(gpt, "top")).splitlines()
    assert header.split()[-1] == "SEEN"
    assert line.split()[:3] == ["gpt", "Running", "120/500"]


def test_top_shows_the_metrics_of_this_second(server: ApiServer, gpt: Namespace) -> None:
    metrics = {
        "gpt-w0-1": 'trainingjob_step{trainingjob="gpt"} 131.0\n',
        "gpt-c1": 'trainingjob_world_size{trainingjob="gpt"} 2.0\n',
    }
    assert gpt.write_status(running_status(coordinatorTerm=1)).status == 200

    def answers(pod: str, _words: Sequence[str]) -> Played:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(metrics[pod])}\r\n\r\n"
        return head + metrics[pod], "", SUCCESS

    with played_node(server, f"node-{gpt.name}", answers):
        for pod in metrics:
            make_pod(gpt, pod, node=f"node-{gpt.name}", phase="Running")
        _, line = good(run(gpt, "top")).splitlines()
        (row,) = json.loads(good(run(gpt, "top", "-o", "json")))["jobs"]
    assert line.split()[:3] == ["gpt", "Running", "131/500"]
    assert line.split()[-4:-3] == ["2"], "ranks"
    assert line.split()[-1] == "live"
    assert (row["name"], row["step"], row["ranks"], row["live"]) == ("gpt", 131, 2, True)
    assert good(run(gpt, "top", "-o", "name")) == "trainingjob.regroup.dev/gpt\n"


def test_logs_say_what_keeps_them_away(gpt: Namespace) -> None:
    """There is no node: the API server cannot read the log of a pod."""
    assert "gpt has no worker pods: `kubectl trainingjob why gpt`" in good(run(gpt, "logs", "gpt"))
    make_pod(gpt, "gpt-w0-1", node="n9", phase="Running")
    text = good(run(gpt, "logs", "gpt"))
    assert text.startswith("gpt-w0-1: cannot get pods/log gpt-w0-1 in namespace ")
    assert "n9" in text
    assert good(run(gpt, "logs", "gpt", "-o", "name")) == "pod/gpt-w0-1\n"


STACK = 'Thread 0x1 (most recent call first):\n  File "x.py", line 7 in reduce\n'


def test_debug_shows_what_all_ranks_do(server: ApiServer, gpt: Namespace) -> None:
    def shows(pod: str, _words: Sequence[str]) -> Played:
        rank = int(pod[5])
        where = "load" if rank == 1 else "reduce"
        text = f'Thread 0x{rank} (most recent call first):\n  File "x.py", line 7 in {where}\n'
        return WorkerStacks(ranks=(RankStack(rank=rank, text=text),)).model_dump_json(), "", SUCCESS

    with played_node(server, f"node-{gpt.name}", shows):
        for number in range(3):
            make_pod(gpt, f"gpt-w{number}-1", node=f"node-{gpt.name}", phase="Running")
        make_pod(gpt, "gpt-w3-1", phase="Pending")
        text = good(run(gpt, "debug", "gpt"))
        report = json.loads(good(run(gpt, "debug", "gpt", "-o", "json")))
    assert text == (
        "gpt: 3 ranks answered, 2 different stacks\n\npod gpt-w3-1 is Pending\n\n"
        "rank 1:\n  load (x.py:7)\n\nranks 0, 2:\n  reduce (x.py:7)\n"
    )
    assert [group["ranks"] for group in report["groups"]] == [[1], [0, 2]]


@pytest.mark.long
def test_the_stacks_of_128_pods_are_asked_for_at_once_and_take_eight_seconds_of_a_processor(
    server: ApiServer, gpt: Namespace
) -> None:
    """None answers before all are asked. Beside other tests the same work takes longer, so that no
    clock is asked.
    """
    everyone = threading.Barrier(128)

    def shows(pod: str, _words: Sequence[str]) -> Played:
        everyone.wait(120)
        rank = RankStack(rank=int(pod.split("-")[1][1:]), text=STACK)
        return WorkerStacks(ranks=(rank,)).model_dump_json(), "", SUCCESS

    with played_node(server, f"node-{gpt.name}", shows):
        for number in range(128):
            make_pod(gpt, f"gpt-w{number}-1", node=f"node-{gpt.name}", phase="Running")
        before = time.process_time()
        shown = good(run(gpt, "debug", "gpt"))
        work = time.process_time() - before
    assert shown.startswith("gpt: 128 ranks answered, all with the same stack")
    assert work <= 8


def test_debug_says_why_it_shows_nothing(gpt: Namespace, team: Namespace) -> None:
    assert "gpt has no worker pods: `kubectl trainingjob why gpt`" in good(
        run(gpt, "debug", "gpt"), 1
    )
    container = {"name": "trainer", "command": ["torchrun", "train.py"]}
    spec = {"launcher": "torchrun", "template": {"spec": {"containers": [container]}}}
    assert team.create(spec, name="stock").status == 201
    assert "stock has spec.launcher: torchrun, whose ranks show no stacks" in good(
        run(team, "debug", "stock"), 1
    )


def test_a_bundle_has_no_secrets(gpt: Namespace, tmp_path: Path) -> None:
    make_pod(gpt, "gpt-w0-1", node="n9", env={"LOGIN": "hunter2", "RANK": "7"}, phase="Running")
    make_event(gpt, "WorkerLost", "url https://u:hunter2@host/", "TrainingJob", "gpt")
    file = tmp_path / "ticket.tar.gz"
    file.touch(mode=0o644)
    text = good(run(gpt, "bundle", "gpt", "--file", str(file)))
    assert text.endswith(f"{file}: 9 files\n")
    assert "left out: logs/gpt-w0-1.log: cannot get pods/log" in text
    assert file.stat().st_mode & 0o77 == 0
    named = run(gpt, "bundle", "gpt", "--file", str(file), "-o", "name")
    assert (good(named), named.stdout) == (named.output, f"{file}\n")
    report = json.loads(run(gpt, "bundle", "gpt", "--file", str(file), "-o", "json").stdout)
    assert report["path"] == str(file)
    assert "why.txt" in report["files"]
    assert report["missing"][0].startswith("logs/gpt-w0-1.log: cannot get pods/log")
    with tarfile.open(file) as archive:
        contents = {
            member.name: stream.read().decode()
            for member in archive
            if (stream := archive.extractfile(member))
        }
    assert set(contents) == {
        f"ticket/{name}"
        for name in (
            "job.yaml", "describe.txt", "why.txt", "timeline.txt", "events.yaml", "pods.yaml",
            "stacks.txt", "versions.txt", "missing.txt",
        )
    }  # fmt: skip
    assert "hunter2" not in str(contents)
    assert "value: '7'" in contents["ticket/pods.yaml"]
    assert "pod gpt-w0-1 does not answer: cannot open pods/exec" in contents["ticket/stacks.txt"]
    assert "Kubernetes: v1." in contents["ticket/versions.txt"]


def test_a_failure_is_simulated_only_after_a_yes(gpt: Namespace) -> None:
    for number in range(2):
        make_pod(gpt, f"gpt-w{number}-1", node=f"n{number}", phase="Running")
    pod = gpt.core("pods/gpt-w1-1")
    shown = good(run(gpt, "simulate-failure", "gpt", "--node", "n1", stdin="n\n"), 1)
    assert "gpt-w1-1" in shown
    assert "gpt-w0-1" not in shown
    assert gpt.api.request("GET", pod).status == 200
    done = good(run(gpt, "simulate-failure", "gpt", "--pod", "gpt-w1-1", "--yes"))
    assert done.endswith("pod gpt-w1-1 deleted\n")
    assert gpt.api.request("GET", pod).status == 404
    assert gpt.api.request("GET", gpt.core("pods/gpt-w0-1")).status == 200
    command = ("simulate-failure", "gpt", "--node", "n0", "--yes", "-o")
    killed = run(gpt, *command, "json").stdout
    assert json.loads(killed) == {
        "job": "gpt", "namespace": gpt.name, "pods": ["gpt-w0-1"], "rank": None, "processes": [],
    }  # fmt: skip
    assert "has no pod gpt-w7-1" in good(
        run(gpt, "simulate-failure", "gpt", "--pod", "gpt-w7-1", "--yes"), 1
    )


def test_a_rank_is_killed_in_its_pod_after_a_yes(server: ApiServer, gpt: Namespace) -> None:
    asked: list[tuple[str, str]] = []

    def kills(pod: str, words: Sequence[str]) -> Played:
        asked.append((pod, words[-1]))
        return "17\n", "", SUCCESS

    with played_node(server, f"node-{gpt.name}", kills):
        for number in range(3):
            make_pod(gpt, f"gpt-w{number}-1", node=f"node-{gpt.name}", phase="Running")
        command = ("simulate-failure", "gpt", "--rank")
        refused = good(run(gpt, *command, "1", stdin="n\n"), 1)
        assert "This kills the process of rank 1 in pod gpt-w1-1" in refused
        assert asked == []
        text = good(run(gpt, *command, "1", "--yes"))
        assert text.endswith("rank 1 killed: process 17 of pod gpt-w1-1\n")
        assert asked == [("gpt-w1-1", "1")]
        report = json.loads(run(gpt, *command, "1", "--yes", "-o", "json").stdout)
        assert (report["pods"], report["rank"], report["processes"]) == (["gpt-w1-1"], 1, [17])
        assert run(gpt, *command, "1", "--yes", "-o", "name").stdout == "pod/gpt-w1-1\n"
        assert "no pod of gpt is known to run rank 7 (of 3;" in good(run(gpt, *command, "7"), 1)


def test_what_fails_under_torchrun_is_a_pod(team: Namespace) -> None:
    container = {"name": "trainer", "command": ["torchrun", "train.py"]}
    spec = {"launcher": "torchrun", "template": {"spec": {"containers": [container]}}}
    assert team.create(spec, name="stock").status == 201
    pod = {
        "metadata": {"name": "stock-s1", "labels": labels("stock", "store")},
        "spec": {"containers": [{"name": "store", "image": "x"}]},
    }
    assert team.api.request("POST", team.core("pods"), pod).status == 201
    command = ("simulate-failure", "stock")
    refused = good(run(team, *command, "--rank", "1"), 1)
    assert "only torchrun knows which pod runs rank 1: give --pod" in refused
    asked = good(run(team, *command, "--pod", "stock-s1", stdin="n\n"), 1)
    assert "All ranks start again" in asked


# --- checkpoints ----------------------------------------------------------------------------------

WEIGHTS = b"weights" * 9000
LISTED = [
    {"step": 120, "path": "/v/step-120", "sizeBytes": 5, "resumable": True, "problem": ""},
    {"step": 80, "path": "/v/step-80", "sizeBytes": 5, "resumable": False, "problem": ""},
    {"step": 40, "path": "/v/step-40", "resumable": False, "problem": "model.bin is missing"},
]


def play_checkpoints(_pod: str, words: Sequence[str]) -> Played:
    """What the trainer's command does in a pod."""
    if "list" in words:
        return json.dumps(LISTED), "", SUCCESS
    if words[-1] == "7":
        return "", "Error: --step 7: not there: choose one of 120", exit_status(1)
    if "verify" in words:
        text = "step 120: whole (5 B)\nstep 40: damaged: \x1b[31m\n"
        return text, "a job passes damaged ones over", exit_status(1)
    checksum = hashlib.blake2b(WEIGHTS).hexdigest() if "120" in words else "0" * 128
    return WEIGHTS, f"verified x\nstep 120 blake2b {checksum}\n", SUCCESS


@pytest.fixture
def resting(server: ApiServer, gpt: Namespace) -> Iterator[Namespace]:
    """A suspended job with checkpoints on a claim, whose readers run."""
    make_claim(gpt)
    images = {"trainer": "trainer:1", "coordinator": "operator:1"}
    saved = {"lastStep": 120, "path": "/v/team/gpt-0/checkpoints/step-120", "sizeBytes": 5}
    status = running_status(phase="Suspended", lastImages=images, checkpoint=saved)
    assert gpt.write_status(status).status == 200
    node = f"node-{gpt.name}"
    with played_node(server, node, play_checkpoints), running_readers(gpt, node):
        yield gpt


def test_checkpoints_are_listed_by_a_worker_or_else_by_a_pod_of_the_moment(
    resting: Namespace,
) -> None:
    newest = good(run(resting, "checkpoint", "list", "gpt"))
    assert "No worker of gpt runs, so this is the newest alone." in newest
    assert newest.splitlines()[-1].split() == ["120", "5", "B", "resumable"]
    lines = good(run(resting, "checkpoint", "list", "gpt", "--yes")).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "STEP SIZE STATE",
        "120 5 B resumable",
        "80 5 B abandoned",
        "40 - damaged: model.bin is missing",
    ]
    assert readers(resting) == []
    make_pod(resting, "gpt-w0-1", node=f"node-{resting.name}", phase="Running")
    listed = json.loads(good(run(resting, "checkpoint", "list", "gpt", "-o", "json")))
    assert [one["step"] for one in listed] == [120, 80, 40]


def test_checkpoints_are_verified_after_a_yes(resting: Namespace) -> None:
    command = ("checkpoint", "verify", "gpt")
    refused = " ".join(good(run(resting, *command, stdin="n\n"), 1).split())
    assert "This makes pod gpt-reader-" in refused
    assert "with claim shared mounted read-only, and deletes it afterwards." in refused
    text = good(run(resting, *command, "--yes"), 1)
    assert "step 120: whole (5 B)\nstep 40: damaged: " in text
    assert "\x1b" not in text, "the volume's files do not write on the terminal"
    assert "a job passes damaged ones over" in text
    done = run(resting, *command, "--yes", "-o", "json")
    assert good(done, 1).endswith("a job passes damaged ones over\n")
    assert json.loads(done.stdout) == {
        "exitCode": 1,
        "checkpoints": [
            {"step": 120, "whole": True, "problem": ""},
            {"step": 40, "whole": False, "problem": r"\x1b[31m"},
        ],
    }
    assert readers(resting) == []


def test_weights_are_exported_to_a_file_whose_checksum_is_compared(
    resting: Namespace, tmp_path: Path
) -> None:
    out = tmp_path / "gpt.safetensors"
    command = ("checkpoint", "export", "gpt", "--yes", "--out", str(out))
    assert "what has come is not what was sent: try again" in good(run(resting, *command), 1)
    assert "--step 7: not there: choose one of 120" in good(
        run(resting, *command, "--step", "7"), 1
    )
    assert list(tmp_path.iterdir()) == []
    text = good(run(resting, *command, "--step", "120"))
    assert text == f"step 120 written to {out}: 61.5 KiB\n"
    assert out.read_bytes() == WEIGHTS
    assert "is there: choose another" in good(run(resting, *command), 2)
    out.unlink()
    report = json.loads(run(resting, *command, "--step", "120", "-o", "json").stdout)
    assert report == {
        "path": str(out),
        "step": 120,
        "sizeBytes": len(WEIGHTS),
        "blake2b": hashlib.blake2b(WEIGHTS).hexdigest(),
    }
    nowhere = str(tmp_path / "no" / "x")
    text = good(run(resting, "checkpoint", "export", "gpt", "-y", "--out", nowhere), 1)
    assert f"Error: --out {nowhere} cannot be written (No such file or directory)" in text
    assert readers(resting) == []


def test_a_job_whose_claim_is_gone_is_one_sentence(gpt: Namespace) -> None:
    status = running_status(images={"trainer": "x", "coordinator": "y"})
    assert gpt.write_status(status).status == 200
    text = good(run(gpt, "checkpoint", "verify", "gpt", "--yes"), 1)
    assert text == (
        "Error: claim shared of job gpt is gone, and with it the checkpoints: restore it from a "
        "backup\n"
    )


# --- connections and rights -----------------------------------------------------------------------


def test_an_api_server_that_is_away_is_one_sentence(team: Namespace, tmp_path: Path) -> None:
    config = yaml.safe_load(team.api.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(config))
    text = good(run(team, "get", kubeconfig=file), 1)
    assert "Error: cannot reach the API server https://127.0.0.1:1: " in text
    assert "onnection refused" in text
    assert len(text.splitlines()) == 1


def test_an_administrator_can_ask_as_somebody_else(gpt: Namespace) -> None:
    text = good(run(gpt, "get", "--as", "edith"), 1)
    assert 'User "edith" cannot list resource "trainingjobs"' in text
    assert good(run(gpt, "--as", "edith", "get"), 1) == text


CALLS = {
    "get": ("get",),
    "status": ("status", "gpt", "-w", "--timeout", "1s"),
    "describe": ("describe", "gpt"),
    "logs": ("logs", "gpt"),
    "why": ("why", "gpt"),
    "timeline": ("timeline", "gpt"),
    "top": ("top",),
    "debug": ("debug", "gpt"),
    "bundle": ("bundle", "gpt", "--file", "/dev/null"),
    "simulate-failure": ("simulate-failure", "gpt", "--pod", "gpt-w0-1", "--yes"),
    "submit": ("submit", "mine", "--model", "gpt:1m"),
    "scale": ("scale", "gpt", "--replicas", "3"),
    "suspend": ("suspend", "gpt"),
    "checkpoint now": ("checkpoint", "now", "gpt", "--no-wait"),
    "restart": ("restart", "gpt", "--from-checkpoint", "--no-wait", "--yes"),
    "resume": ("resume", "gpt"),
}


@pytest.mark.parametrize("verb", CALLS)
def test_the_rights_that_the_page_names_are_enough_and_without_them_it_is_refused(
    server: ApiServer, gpt: Namespace, verb: str
) -> None:
    user = f"user-{gpt.name}"
    make_pod(gpt, "gpt-w0-1", node="n9", phase="Running")
    config = server.kubeconfig_of(Identity(user, user))
    refused = good(run(gpt, *CALLS[verb], kubeconfig=config), 1)
    assert f'User "{user}" cannot' in refused
    assert len(refused.splitlines()) == 1
    grant(gpt, user, needed_by(verb))
    shown = good(run(gpt, *CALLS[verb], kubeconfig=config))
    needed, *_ = re.split("Not seen:|left out:", shown)
    assert "forbidden" not in needed


def play_pods(pod: str, words: Sequence[str]) -> Played:
    """What pods do for `debug`, `checkpoint` and `simulate-failure`."""
    if words[-1] == "1":
        return "17\n", "", SUCCESS
    if "stacks" in " ".join(words):
        ranks = (RankStack(rank=int(pod[5]), text="Thread 0x1 (most recent call first):\n"),)
        return WorkerStacks(ranks=ranks).model_dump_json(), "", SUCCESS
    return play_checkpoints(pod, words)


KILL = ("simulate-failure", "gpt", "--rank", "1", "--yes")
VERIFY = ("checkpoint", "verify", "gpt", "--yes")
LIST = ("checkpoint", "list", "gpt")
EXPORT = ("checkpoint", "export", "gpt", "--step", "120", "--yes", "--out")
IN_PODS: dict[str, tuple[tuple[str, ...], list[Right], str]] = {
    "debug": (("debug", "gpt"), needed_by("debug"), "2 ranks answered"),
    "checkpoint list": (LIST, needed_by("checkpoint list"), "40 - damaged"),
    "checkpoint list --yes": ((*LIST, "--yes"), needed_by("checkpoint verify"), "40 - damaged"),
    "checkpoint verify": (VERIFY, needed_by("checkpoint verify"), "step 120: whole (5 B)"),
    "checkpoint export": (EXPORT, needed_by("checkpoint export"), "step 120 written to"),
    "simulate-failure --rank": (KILL, named_in(VERBS["simulate-failure"][1]), "rank 1 killed"),
}
"""What runs commands in pods: how it is called, what it may do, and what it prints then."""
WITHOUT_WORKERS = {"checkpoint list --yes", "checkpoint verify", "checkpoint export"}


@pytest.fixture
def in_pods(server: ApiServer, gpt: Namespace, what: str) -> Iterator[Namespace]:
    """The job, with workers that run or with checkpoints for readers, on a node that answers."""
    make_claim(gpt)
    node = f"node-{gpt.name}"
    images = {"trainer": "trainer:1", "coordinator": "operator:1"}
    saved = {"lastStep": 120, "path": "/v/team/gpt-0/checkpoints/step-120", "sizeBytes": 5}
    rests = {"phase": "Suspended"} if what in WITHOUT_WORKERS else {}
    status = running_status(lastImages=images, checkpoint=saved, **rests)
    assert gpt.write_status(status).status == 200
    for number in range(0 if rests else 2):
        make_pod(gpt, f"gpt-w{number}-1", node=node, phase="Running")
    with played_node(server, node, play_pods), running_readers(gpt, node):
        yield gpt


def call_in_pods(
    server: ApiServer, team: Namespace, tmp_path: Path, what: str, rights: list[Right]
) -> str:
    """What a new user with these rights sees, in one line."""
    user = f"{team.name}-{next(_numbers)}"
    grant(team, user, rights)
    command, _, _ = IN_PODS[what]
    arguments = (*command, str(tmp_path / user)) if command[-1] == "--out" else command
    done = run(team, *arguments, kubeconfig=server.kubeconfig_of(Identity(user, user)))
    return " ".join(done.output.split())


@pytest.mark.parametrize("what", IN_PODS)
def test_the_rights_that_the_page_names_are_enough_for_what_runs_in_pods(
    server: ApiServer, in_pods: Namespace, tmp_path: Path, what: str
) -> None:
    _, rights, prints = IN_PODS[what]
    shown = call_in_pods(server, in_pods, tmp_path, what, rights)
    assert prints in shown
    assert "forbidden" not in shown
    assert "cannot" not in shown
    assert readers(in_pods) == []


CREATE_EXEC, DELETE = Right("create", "pods/exec"), Right("delete", "pods")


@pytest.mark.parametrize("what", IN_PODS)
def test_what_runs_in_pods_cannot_do_without_any_of_these_rights(
    server: ApiServer, in_pods: Namespace, tmp_path: Path, what: str
) -> None:
    _, rights, prints = IN_PODS[what]
    for lacking in rights:
        others = [one for one in rights if one != lacking]
        shown = call_in_pods(server, in_pods, tmp_path, what, others)
        if lacking == DELETE:  # the pod of the moment is left, and ends by itself
            assert prints in shown
            assert len(readers(in_pods)) == 1
        elif lacking == CREATE_EXEC:  # the API server does not say what is missing
            assert "pods/exec" in shown
            assert "is forbidden" in shown
        else:
            assert lacking.refusal in shown, lacking


# --- kubectl --------------------------------------------------------------------------------------


def test_kubectl_finds_the_command_and_completes_it(server: ApiServer, gpt: Namespace) -> None:
    environment = {
        **os.environ,
        "PATH": f"{PROGRAMS}:{server.bin}:{os.environ['PATH']}",
        "KUBECONFIG": str(server.kubeconfig),
    }

    def kubectl(*arguments: str) -> str:
        command = [str(server.bin / "kubectl"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert kubectl("trainingjob", "get", "-n", gpt.name, "-o", "name") == (
        "trainingjob.regroup.dev/gpt\n"
    )
    assert "Usage: kubectl trainingjob" in kubectl("trainingjob", "--help")
    typed = kubectl("__complete", "trainingjob", "why", "-n", gpt.name, "g")
    assert typed.splitlines()[0].split("\t")[0] == "gpt"
