"""The NetworkPolicy of a job, shown by connections that a cluster lets through or refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from demo import installation as installing
from demo.stages.devcluster import DevclusterStage
from devcluster.progress import to_stderr
from regroup_operator.api.names import network_policy
from regroup_trainer.protocol.environment import AGENT_METRICS_PORT, COORDINATOR_PORT
from tests.support.jobs import Job, make_job
from tests.support.listening_ports import listening_ports
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]

OUTSIDER = "outsider"
PROBE = """\
import json, socket, sys
for pod, address, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((address, port), 2).close()
        print(pod, port)
    except OSError:
        pass
"""
DENY_ALL = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny-all"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}
Target = tuple[str, str, int]


@pytest.fixture
def enforced(installation: Installation) -> Installation:
    """The installation, on nodes that enforce policies."""
    if isinstance(installation.stage, DevclusterStage):
        installation.stage.cluster.enforce_policies(to_stderr())
    return installation


@pytest.fixture
def elsewhere(enforced: Installation) -> Iterator[str]:
    """A second namespace; yields its name."""
    namespace = f"{enforced.namespace}-elsewhere"
    installing.make_namespace(enforced.stage, namespace)
    yield namespace
    enforced.kubectl("delete", "namespace", namespace, "--wait=false")


def start_outsider(installation: Installation, namespace: str) -> None:
    """A pod that belongs to no job and listens on port 8000; returns when it runs."""
    container = {
        "name": "main",
        "image": installing.images()["trainer"].name,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "http.server", "8000"],
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": OUTSIDER}, "spec": spec}
    installation.kubectl.apply(pod, namespace=namespace)
    ready = ("wait", f"pod/{OUTSIDER}", "--for=condition=Ready", "--timeout=90s")
    installation.kubectl(*ready, "-n", namespace)


def listening(installation: Installation, pod: dict[str, Any]) -> list[Target]:
    """What a pod accepts connections on, by the kernel's word, save on its own loopback."""
    table = installation.kubectl(
        "exec", pod["metadata"]["name"], "-n", pod["metadata"]["namespace"], "--",
        "cat", "/proc/net/tcp",
    )  # fmt: skip
    where = (pod["metadata"]["name"], pod["status"]["podIP"])
    return [(*where, port) for port in sorted(listening_ports(table))]


def reached(
    installation: Installation, namespace: str, targets: list[Target], pod: str = OUTSIDER
) -> set[tuple[str, int]]:
    """Which of `targets` accept a connection from a pod."""
    shown = installation.kubectl(
        "exec", pod, "-n", namespace, "--", "python3", "-c", PROBE, json.dumps(targets)
    )
    return {(name, int(port)) for name, port in map(str.split, shown.splitlines())}


def targets_of(installation: Installation, job: Job) -> list[Target]:
    """All that the job's pods listen on."""
    pods = [job.coordinator(), *job.workers()]
    return [target for pod in pods for target in listening(installation, pod)]


def must_be_reached(job: Job) -> set[tuple[str, int]]:
    """The ports of status and metrics, of coordinator and agents."""
    coordinator = (job.coordinator()["metadata"]["name"], COORDINATOR_PORT)
    agents = {(pod["metadata"]["name"], AGENT_METRICS_PORT) for pod in job.workers()}
    return {coordinator, *agents}


@dataclass(frozen=True)
class Outsiders:
    """A pod of no job in each of two namespaces, and the job that they try to reach."""

    installation: Installation
    job: Job
    namespaces: tuple[str, str]

    def are_shut_out(self) -> bool:
        """Whether they reach nothing that the job's pods listen on."""
        targets = targets_of(self.installation, self.job)
        assert must_be_reached(self.job) <= {(name, port) for name, _, port in targets}
        return not any(self._reached(targets))

    def are_let_in(self) -> bool:
        """Whether each of them reaches the ports of status and metrics."""
        targets, wanted = targets_of(self.installation, self.job), must_be_reached(self.job)
        return all(wanted <= found for found in self._reached(targets))

    def _reached(self, targets: list[Target]) -> list[set[tuple[str, int]]]:
        return [reached(self.installation, name, targets) for name in self.namespaces]


@pytest.fixture
def outsiders(enforced: Installation, elsewhere: str) -> Outsiders:
    """Beside a job that trains with three workers."""
    job = enforced.start(make_job("gpt", steps=50_000))
    job.wait_until_whole_and_saved()
    for namespace in (job.namespace, elsewhere):
        start_outsider(enforced, namespace)
    return Outsiders(enforced, job, (job.namespace, elsewhere))


def test_outsiders_reach_no_port_of_an_isolated_job_which_recovers_all_the_same(
    enforced: Installation, outsiders: Outsiders
) -> None:
    job = outsiders.job
    wait_until("the outsiders to be shut out", outsiders.are_shut_out, seconds=60)
    own = job.coordinator()["metadata"]["name"]
    assert must_be_reached(job) <= reached(enforced, job.namespace, targets_of(enforced, job), own)

    victim = enforced.worker_of_rank(job, 0)
    enforced.kubectl("delete", "pod", victim, "-n", job.namespace, "--grace-period=0", "--force")
    (recovery,) = wait_until("the recovery", job.losses, seconds=120)
    assert (recovery["restoredFrom"], recovery["lostSteps"]) == ("Peers", 0)
    job.wait_for_ranks(3, seconds=120)
    assert len(job.losses()) == 1, "the policy came between the workers"
    wait_until("the outsiders to be shut out again", outsiders.are_shut_out, seconds=60)
    job.suspend()
    assert enforced.audit(job) == []


def test_outsiders_reach_a_job_whose_policy_is_deleted_until_the_operator_makes_it_again(
    enforced: Installation, outsiders: Outsiders
) -> None:
    wait_until("the outsiders to be shut out", outsiders.are_shut_out, seconds=60)
    with enforced.without_operator():
        where = ("-n", outsiders.job.namespace)
        enforced.kubectl("delete", "networkpolicy", network_policy(outsiders.job.name), *where)
        wait_until("the outsiders to be let in", outsiders.are_let_in, seconds=60)
    wait_until("the operator to shut them out", outsiders.are_shut_out, seconds=90)


def test_an_isolated_job_trains_in_a_namespace_that_denies_everything(
    enforced: Installation, elsewhere: str
) -> None:
    for namespace in (enforced.namespace, elsewhere):
        start_outsider(enforced, namespace)
    pod = enforced.kubectl.read("pod", OUTSIDER, "-n", enforced.namespace)
    server = (OUTSIDER, pod["status"]["podIP"], 8000)
    assert reached(enforced, elsewhere, [server]) == {(OUTSIDER, 8000)}
    enforced.kubectl.apply(DENY_ALL, namespace=enforced.namespace)
    wait_until("all to be denied", lambda: not reached(enforced, elsewhere, [server]), seconds=60)
    job = enforced.start(make_job("denied", steps=800))
    job.wait_until_whole_and_saved()
    assert reached(enforced, elsewhere, targets_of(enforced, job)) == set()
    job.wait_for_condition("Complete", seconds=240)
    assert enforced.audit(job) == []
