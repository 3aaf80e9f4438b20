"""`doctor` on a real API server, with nodes that the tests play."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from devcluster.apiserver import ApiServer
from devcluster.pki import Identity
from regroup.cli.kubectl_trainingjob import trainingjob
from regroup.diagnosis.volume_probe import Probe
from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.kubeconfig import Target
from tests.support.kube_api import Api, Json, Namespace, install_definition
from tests.support.operator_process import Kubelets, apply, make_claim
from tests.support.played_kubelet import SUCCESS, Played, exit_status, played_node
from tests.support.prometheus_operator import definition
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600)]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        install_definition(Api(server.kubeconfig))
        play_operator(Api(server.kubeconfig))
        yield server


def play_operator(api: Api) -> None:
    """The Lease of an operator that has renewed it, for all tests of this file."""
    Namespace.make(api, "regroup-system")
    renewed = datetime.now(UTC) + timedelta(hours=1)
    spec = {"holderIdentity": "operator-1", "renewTime": f"{renewed:%Y-%m-%dT%H:%M:%S.%fZ}"}
    body = {"metadata": {"name": "regroup-operator"}, "spec": spec}
    path = "/apis/coordination.k8s.io/v1/namespaces/regroup-system/leases"
    assert api.request("POST", path, body).status == 201


@pytest.fixture
def team(server: ApiServer) -> Namespace:
    """A fresh namespace with the claim `shared`."""
    team = Namespace.make(Api(server.kubeconfig), f"doctor-{next(_numbers)}")
    make_claim(team)
    return team


def run(team: Namespace, *arguments: str, config: Path | None = None, stdin: str = "") -> Result:
    flags = ("--kubeconfig", str(config or team.api.kubeconfig), "-n", team.name, "doctor")
    return CliRunner(env={"COLUMNS": "80"}).invoke(trainingjob, [*flags, *arguments], input=stdin)


def states(done: Result) -> dict[str, str]:
    """Check -> OK, WARN or FAIL."""
    lines = [line.split(None, 1) for line in done.output.splitlines() if line[:1] in "OWF"]
    return {rest.partition(":")[0]: state for state, rest in lines}


class Shells:
    """The shells of pods: each line is answered in turn by what a volume would give."""

    def __init__(self, *, shared: bool = True, fails: bool = False) -> None:
        self.shared, self.fails = shared, fails
        self.lines: list[str] = []

    def __call__(self, pod: str, words: Sequence[str]) -> Played:
        number = pod.split("-")[2]
        self.lines.append(words[-1])
        if self.fails:
            return "", "mkdir: Permission denied", exit_status(1)
        if words[-1].startswith("mkdir"):
            return "", "", SUCCESS
        seen = f"{number}\n{64 * 1024 * 1024}\n" if "wc -c" in words[-1] else f"{number}\n"
        return (seen if self.shared else "0\n"), "", SUCCESS


@contextmanager
def cluster(server: ApiServer, team: Namespace, shells: Shells) -> Iterator[None]:
    """Inside, pods get a node and run."""
    kubelets, ends = Kubelets(team), threading.Event()
    node = f"node-{team.name}"

    def run_pods() -> None:
        while not ends.wait(0.2):
            for pod in team.api.list_all(team.core("pods")):
                if not pod["spec"].get("nodeName"):
                    kubelets.run(pod["metadata"]["name"], node)

    with played_node(server, node, shells):
        thread = threading.Thread(target=run_pods)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()


def pods(team: Namespace) -> list[Json]:
    return team.api.list_all(team.core("pods"))


def test_a_cluster_without_nodes(team: Namespace) -> None:
    done = run(team)
    found = states(done)
    assert found["Kubernetes"] == found["TrainingJobs"] == found["your rights"] == "OK"
    assert found["operator"] == "OK"
    assert found["GPUs"] == found["Prometheus"] == found["storage"] == "WARN"
    assert done.exit_code == 0, done.output
    report = json.loads(run(team, "-o", "json").output)
    assert next(one["check"] for one in report["findings"]) == "Kubernetes"


def test_a_cluster_without_an_operator_fails(team: Namespace) -> None:
    done = run(team, "--operator-namespace", "nobodys")
    assert states(done)["operator"] == "FAIL"
    assert done.exit_code == 1, done.output


def test_who_may_nothing_learns_what(server: ApiServer, team: Namespace) -> None:
    config = server.kubeconfig_of(Identity("nobody", "nobody"))
    done = run(team, config=config)
    assert done.exit_code == 1
    assert states(done)["your rights"] == "FAIL"
    assert states(done)["GPUs"] == "WARN"
    assert "Traceback" not in done.output


def test_storage_is_written_and_read_by_two_pods_that_are_gone_then(
    server: ApiServer, team: Namespace
) -> None:
    shells = Shells()
    with cluster(server, team, shells):
        done = run(team, "--claim", "shared", "--yes")
        assert done.exit_code == 0, done.output
    found = states(done)
    assert (found["claim shared"], found["storage shared"]) == ("OK", "OK")
    assert "This creates the pods regroup-doctor-" in done.output
    assert len(shells.lines) == 4
    assert pods(team) == []


@pytest.mark.parametrize(
    ("shells", "words"),
    [
        (Shells(shared=False), "do not see the same files"),
        (Shells(fails=True), "cannot use the volume: mkdir: Permission denied"),
    ],
)
def test_storage_that_is_not_shared_or_refuses_fails(
    server: ApiServer, team: Namespace, shells: Shells, words: str
) -> None:
    with cluster(server, team, shells):
        done = run(team, "--claim", "shared", "--yes")
    assert done.exit_code == 1
    assert words in " ".join(done.output.split())
    assert pods(team) == []


def test_nothing_is_created_without_a_yes_or_for_a_claim_that_cannot_do(team: Namespace) -> None:
    done = run(team, "--claim", "shared", stdin="n\n")
    assert "Create them?" in done.output
    assert pods(team) == []
    assert "not found" in run(team, "--claim", "other", "--yes").output
    assert pods(team) == []


def test_pods_that_do_not_start_are_named_and_deleted(team: Namespace) -> None:
    """There is no scheduler: they stay Pending."""
    api = ClusterApi(Target(kubeconfig=str(team.api.kubeconfig)))
    (finding,) = Probe(api, team.name, "shared", "busybox", start_seconds=0.0).run()
    api.close()
    assert finding.state == "fail"
    assert "does not run: Pending" in finding.found
    assert pods(team) == []


MONITORS = ("podmonitors", "servicemonitors", "prometheusrules", "prometheuses")
GROUP = "/apis/monitoring.coreos.com/v1"


def serves(api: Api, plural: str) -> bool:
    return api.request("GET", f"{GROUP}/{plural}").status == 200


def make(team: Namespace, kind: str, plural: str, labels: dict[str, str], spec: Json) -> None:
    body = {"apiVersion": "monitoring.coreos.com/v1", "kind": kind, "spec": spec}
    body["metadata"] = {"name": "regroup", "labels": labels}
    path = f"{GROUP}/namespaces/{team.name}/{plural}"
    made = team.api.request("POST", path, body)
    assert made.status == 201, made.message


def test_a_prometheus_that_wants_other_labels_is_named() -> None:
    with ApiServer() as server:
        api = Api(server.kubeconfig)
        for plural in MONITORS:
            apply(api, "create", "-f", str(definition(plural)))
        for plural in MONITORS:
            wait_until(plural, partial(serves, api, plural), seconds=60)
        team = Namespace.make(api, "monitoring")
        stack = {"matchLabels": {"release": "stack"}}
        selectors = {"podMonitorSelector": stack, "ruleSelector": stack}
        make(team, "Prometheus", "prometheuses", {}, selectors)
        ours, rule = {"app.kubernetes.io/part-of": "regroup"}, Json(groups=[])
        make(team, "PrometheusRule", "prometheusrules", {**ours, "release": "stack"}, rule)
        monitor: Json = {"selector": {}, "podMetricsEndpoints": [{"port": "metrics"}]}
        make(team, "PodMonitor", "podmonitors", ours, monitor)
        done = run(team)
    lines = [line for line in done.output.splitlines() if "Prometheus:" in line]
    assert [line.split()[0] for line in lines] == ["FAIL", "WARN", "OK"], done.output
    assert "metrics.podMonitor.labels" in done.output
