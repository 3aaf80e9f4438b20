"""Jobs train on while Regroup is upgraded from 0.2.0, goes back to it, and is installed anew.

Helm, API server, both operators and the coordinators (of 0.2.0, from the variables of their pods)
are real. There is no kubelet, and agents speak the protocol of 0.2.0 without training.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from devcluster.apiserver import ApiServer
from devcluster.processes import run
from tests.support.former_release import (
    IMAGES,
    PROTOCOL,
    FormerAgents,
    FormerCoordinator,
    FormerRelease,
    token_of,
)
from tests.support.kube_api import ROOT, Api, Json, Namespace
from tests.support.operator_process import (
    NODES,
    RELEASE,
    Kubelets,
    OperatorProcess,
    kubeconfig_of_release,
    make_claim,
    make_node,
    renewed_leases,
)
from tests.support.specs import SMALLEST, put
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.apiserver, pytest.mark.long, pytest.mark.timeout(900)]

CHART = ROOT / "charts/regroup"
WAIT_SECONDS = 120.0
PATIENT = {"heartbeatMilliseconds": 1000, "timeoutMilliseconds": 600_000}
"""The agents of the test share a machine that may stand still."""
SPEC = put(put(SMALLEST, "elasticPolicy", None), "failureDetection", PATIENT)


class Installation:
    """One API server, on which releases follow each other."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.api = Api(server.kubeconfig)
        self.former = FormerRelease(folder / "0.2.0")
        self._server, self._folder = server, folder
        self._operator: OperatorProcess | None = None
        self._count = 0

    def helm(self, *arguments: str | Path) -> None:
        """Run helm on the release, while no operator runs."""
        self.stop()
        command = [self._server.bin / "helm", *arguments, "--namespace", RELEASE]
        run(command, environment={"KUBECONFIG": str(self._server.kubeconfig)})

    def start(self) -> None:
        """The operator of today."""
        self._start(OperatorProcess(*self._place()), stands_by=False)

    def start_former(self) -> None:
        """The operator of 0.2.0."""
        self._start(self.former.operator(*self._place(), self._key()), stands_by=True)

    def stop(self) -> None:
        """End the operator that runs. It has shown no error of its own."""
        operator, self._operator = self._operator, None
        if operator is not None:
            assert operator.stop() == 0
            assert "Traceback" not in operator.log.read_text()

    def end(self) -> None:
        """Kill the operator that runs."""
        if self._operator is not None:
            self._operator.end()

    def _start(self, operator: OperatorProcess, *, stands_by: bool) -> None:
        self._operator = operator
        operator.start(stands_by=stands_by)

    def _place(self) -> tuple[Path, Path]:
        self._count += 1
        folder = self._folder / f"operator{self._count}"
        folder.mkdir()
        return kubeconfig_of_release(self.api, folder), folder

    def _key(self) -> bytes:
        path = f"/api/v1/namespaces/{RELEASE}/secrets/regroup-key"
        return base64.b64decode(self.api.request("GET", path).body["data"]["key"])


class FormerJob:
    """A job of 0.2.0 that trains, with its coordinator and its agents, which `serving` ends."""

    _coordinator: FormerCoordinator
    _agents: FormerAgents

    def __init__(
        self, namespace: Namespace, release: FormerRelease, folder: Path, serving: ExitStack
    ) -> None:
        self.namespace, self.kubelets = namespace, Kubelets(namespace)
        self._release, self._folder, self._serving = release, folder, serving

    def start(self) -> None:
        """Create it, and run its pods, until it trains."""
        for node in NODES:
            make_node(self.namespace.api, node)
        make_claim(self.namespace)
        self._serving.enter_context(renewed_leases(self.namespace.api, NODES))
        assert self.namespace.create(SPEC).status == 201
        wait_until("four pods", lambda: len(self.kubelets.pods()) == 4, WAIT_SECONDS)
        self.token = token_of(self.namespace)
        self._agents = self._serving.enter_context(FormerAgents(self.token))
        self._run_coordinator("gpt-c1")
        for name in self.kubelets.pods("worker"):
            self._run_worker(name)
        self.until_it_trains("1.1")

    def pods(self) -> dict[str, str]:
        """Name -> UID of those that run."""
        found = self.kubelets.pods().items()
        return {n: p["metadata"]["uid"] for n, p in found if p["status"]["phase"] == "Running"}

    def until_it_trains(self, generation: str) -> None:
        """Wait until all three workers train in this generation, as coordinator and status show."""

        def trains() -> bool:
            report, status = self.coordinator_status(), self.status()
            shown = status.get("phase"), status.get("rendezvousGeneration"), status.get("worldSize")
            says = report["phase"], report["world_size"]
            return shown == ("Running", generation, 3) and says == ("running", 3)

        wait_until(f"training in generation {generation}", trains, WAIT_SECONDS)
        assert not self._agents.refusals

    def until_it_is_followed(self) -> None:
        """Wait until the status shows more steps: the operator follows the coordinator."""

        def step() -> int:
            return self.status().get("progress", {}).get("step") or 0

        before = step()
        wait_until("more steps", lambda: step() > before, WAIT_SECONDS)

    def status(self) -> Json:
        """Of the TrainingJob."""
        status: Json = self.namespace.read().get("status", {})
        return status

    def coordinator_status(self) -> Json:
        """What its coordinator reports."""
        return self._coordinator.status()

    def lose_worker(self, name: str, by: str) -> None:
        """A pod is deleted; its replacement starts and joins."""
        self._agents.end(self.kubelets.pods()[name])
        options: Json = {"gracePeriodSeconds": 0}
        self.namespace.api.request("DELETE", self.namespace.core(f"pods/{name}"), options)
        self._wait_for_pod(by, IMAGES["trainer"])
        self._run_worker(by)

    def lose_coordinator(self, name: str, by: str) -> None:
        """It is killed; its successor starts from what the operator wrote into its pod."""
        self._coordinator.end()
        self.kubelets.write(name, {"phase": "Failed", "reason": "Evicted"})
        self._wait_for_pod(by, IMAGES["coordinator"])
        self._run_coordinator(by)

    def _wait_for_pod(self, name: str, image: str) -> None:
        pod = wait_until(name, lambda: self.kubelets.pods().get(name), WAIT_SECONDS)
        assert pod["spec"]["containers"][0]["image"] == image

    def _run_worker(self, name: str) -> None:
        self._agents.start(self.kubelets.run(name, NODES[int(name.split("-")[1][1:])]))

    def _run_coordinator(self, name: str) -> None:
        pod = self.kubelets.pods()[name]
        coordinator = self._release.coordinator(pod, self.namespace, self._folder)
        self._coordinator = self._serving.enter_context(coordinator)
        self._agents.coordinator = coordinator.address
        self.kubelets.run(name, "n1", coordinator.address)


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """With release 0.2.0, and its operator."""
    with ApiServer() as server, ExitStack() as stack:
        made = Installation(server, tmp_path)
        stack.callback(made.end)
        made.helm("install", "regroup", made.former.chart, "--create-namespace")
        made.start_former()
        yield made


@pytest.fixture
def job(installation: Installation, tmp_path: Path) -> Iterator[FormerJob]:
    namespace = Namespace.make(installation.api, "team")
    with ExitStack() as serving:
        job = FormerJob(namespace, installation.former, tmp_path, serving)
        job.start()
        yield job


def test_a_job_of_0_2_0_trains_on_through_the_upgrade_and_the_way_back(
    installation: Installation, job: FormerJob
) -> None:
    before = job.pods()
    installation.helm("upgrade", "regroup", CHART, "--reset-then-reuse-values")
    installation.start()
    job.until_it_is_followed()
    status = job.status()
    assert (status["protocolVersion"], status["images"]) == (PROTOCOL, IMAGES)
    assert job.pods() == before
    job.lose_worker("gpt-w2-1", by="gpt-w2-2")
    job.until_it_trains("1.2")
    job.lose_coordinator("gpt-c1", by="gpt-c2")
    job.until_it_trains("1.2")
    job.namespace.replace_spec(put(SPEC, "restartPolicy.maxRestarts", 7), dry_run=False)
    wait_until("the newer spec", lambda: job.coordinator_status()["revision"] == 2, WAIT_SECONDS)

    before = job.pods()
    installation.helm("upgrade", "regroup", installation.former.chart, "--reset-then-reuse-values")
    installation.start_former()
    job.until_it_is_followed()
    assert job.status()["images"] == IMAGES
    assert job.pods() == before
    job.lose_coordinator("gpt-c2", by="gpt-c3")
    job.until_it_trains("1.2")
    job.lose_worker("gpt-w0-1", by="gpt-w0-3")
    job.until_it_trains("3.1")
    assert token_of(job.namespace) == job.token


def test_jobs_train_on_while_regroup_is_uninstalled_and_installed_again(
    installation: Installation, job: FormerJob
) -> None:
    before = job.pods()
    installation.helm("uninstall", "regroup")
    assert job.pods() == before
    installation.helm("install", "regroup", CHART)
    installation.start()
    job.until_it_is_followed()
    job.until_it_trains("1.1")
    assert job.pods() == before
    assert token_of(job.namespace) == job.token
