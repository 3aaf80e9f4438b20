"""A job trains on while Regroup is upgraded from release 0.2.0, rolled back to it, upgraded again,
and uninstalled: as `docs/tasks/upgrade.md` says, with the images of both releases.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from demo import installation as installing
from demo.installation import Image
from demo.screen import Screen
from tests.support.former_release import PROTOCOL, TAG, FormerRelease
from tests.support.jobs import Job, make_job
from tests.support.kube_api import ROOT
from tests.support.page_terminal import PageTerminal
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3000)]

CHART = ROOT / "charts/regroup"
WORKERS = 2
KEEP_VALUES = "--reset-then-reuse-values"
LABEL, RAISED = "owner", "150m"
CHANGED = (
    f"podLabels.{LABEL}=ml",
    "logLevel=DEBUG",
    f"coordinator.resources.requests.cpu={RAISED}",
    "dashboards.enabled=false",
    "metrics.port=8090",
    "priorityClassName=system-cluster-critical",
)
"""Values that the owner of the former release has changed: their upgrade keeps them."""


class Releases:
    """Both releases on one cluster, of which one is installed."""

    def __init__(self, installation: Installation, folder: Path) -> None:
        self._installation, screen = installation, Screen()
        kubectl = installation.kubectl
        programs = Path(kubectl.command()[0]).parent
        self._terminal = PageTerminal(folder, kubectl.environment(), (programs,))
        former = FormerRelease(folder)
        self.former: tuple[Path, dict[str, Image]] = former.chart, former.images()
        self.present: tuple[Path, dict[str, Image]] = CHART, installing.build_images(screen)
        images = [*self.former[1].values(), *self.present[1].values()]
        installation.stage.load({image.name: image.path for image in images}, screen)

    def change_to(self, release: tuple[Path, dict[str, Image]], *values: str) -> None:
        """Install it, after the operator before has ended; `values` that were changed before stay,
        too.
        """
        where = ("-n", installing.SYSTEM)
        if self._installation.kubectl.read("deployments", *where)["items"]:
            self._installation.scale_operator(0)  # one up to 0.2.0 knows no Lease
        chart, images = release
        settings = [part for value in values for part in ("--set", value)]
        options = (KEEP_VALUES, *settings)
        installing.helm_install(self._installation.kubectl, images, chart, options)

    def prepare_the_way_back(self) -> None:
        """The former release names the Secret that its chart has made: else none rolls back to
        it.
        """
        self._terminal.type(
            "helm upgrade regroup FORMER_CHART -n regroup-system --reset-then-reuse-values "
            "--set operatorKey.existingSecret=regroup-key",
            changes={"FORMER_CHART": str(self.former[0])},
        )

    def roll_back(self) -> None:
        """To the release before, after the operator has ended."""
        self._installation.scale_operator(0)
        self._terminal.type("helm rollback regroup -n regroup-system")

    def operator_pod(self) -> dict[str, Any]:
        """The template of the installed operator's pods."""
        found = self._installation.kubectl.read("deployments", "-n", installing.SYSTEM)["items"]
        return dict(found[0]["spec"]["template"])

    def uninstall(self) -> None:
        """As a user would."""
        where = ("--namespace", installing.SYSTEM, "--wait")
        self._installation.kubectl.helm("uninstall", installing.RELEASE, *where)


def test_a_job_trains_on_from_0_2_0_to_today_and_back_and_without_an_operator(
    bare_installation: Installation, tmp_path: Path
) -> None:
    releases = Releases(bare_installation, tmp_path)
    releases.change_to(releases.former, *CHANGED)
    releases.prepare_the_way_back()
    job = bare_installation.start(make_job(replicas=WORKERS, steps=10_000_000))
    job.wait_until_whole_and_saved()
    before = _course(job)

    releases.change_to(releases.present)
    _wait_until_followed(job)
    assert _course(job) == before
    operator = releases.operator_pod()
    assert operator["metadata"]["labels"][LABEL] == "ml"
    assert operator["spec"]["priorityClassName"] == "system-cluster-critical"
    assert job.status()["protocolVersion"] == PROTOCOL
    _lose_a_worker(bare_installation, job)
    before = _course(job)

    releases.roll_back()
    _wait_until_followed(job)
    assert _course(job) == before
    (container,) = releases.operator_pod()["spec"]["containers"]
    assert container["image"] == releases.former[1]["operator"].name
    _lose_the_coordinator(bare_installation, job)

    releases.change_to(releases.present)
    job.suspend()
    saved = job.step()
    job.patch(suspend=False)
    job.wait_for_ranks(WORKERS, seconds=180)
    _wait_until_followed(job)
    assert job.step() > saved
    assert all(TAG not in image for image in _images(job)), "it runs the release of today"
    (container,) = job.coordinator()["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == RAISED
    before = _course(job)

    releases.uninstall()
    steps = bare_installation.committed_steps(job)
    wait_until(
        "the job to train on alone",
        lambda: bare_installation.committed_steps(job) > steps,
        seconds=120,
    )
    assert _course(job) == before, "the definition and the job stay"


def _course(job: Job, role: str | None = None) -> tuple[object, ...]:
    """What no upgrade may change: pods (of this role), starts of their containers, images,
    generation, restarts.
    """
    status = job.status()
    starts = {
        (pod["metadata"]["uid"], container["name"], container["restartCount"])
        for pod in job.pods(role)
        for container in pod["status"]["containerStatuses"]
    }
    return starts, _images(job), status["rendezvousGeneration"], status["restartCount"]


def _images(job: Job) -> set[str]:
    return {one["image"] for pod in job.pods() for one in pod["spec"]["containers"]}


def _wait_until_followed(job: Job) -> None:
    """Wait until the status shows more steps: the operator that runs now follows the job."""
    step = job.step()
    wait_until("more steps in the status", lambda: job.step() > step, seconds=180)
    job.wait_for_ranks(WORKERS)


def _lose_a_worker(installation: Installation, job: Job) -> None:
    """Delete a pod. Its replacement runs the images with which the job has started."""
    images, victim = _images(job), job.workers()[0]["metadata"]["name"]
    installation.kubectl("delete", "pod", victim, "-n", job.namespace, "--force")

    def replaced() -> bool:
        status = job.status()
        ranked = {one["pod"] for one in status["workers"] if "rank" in one}
        return victim not in ranked and len(ranked) == status["worldSize"] == WORKERS

    wait_until("a replacement that trains", replaced, seconds=240)
    _wait_until_followed(job)
    assert _images(job) == images


def _lose_the_coordinator(installation: Installation, job: Job) -> None:
    """Kill it. Its successor runs the images with which the job has started, and finds all workers
    training: none of them starts again.
    """
    before, term = _course(job, "worker"), job.status()["coordinatorTerm"]
    victim = job.coordinator()["metadata"]["name"]
    kill = ("--grace-period=0", "--force")
    installation.kubectl("delete", "pod", victim, "-n", job.namespace, *kill)
    wait_until(
        "a successor in the status", lambda: job.status()["coordinatorTerm"] > term, seconds=120
    )
    assert job.coordinator()["metadata"]["name"] != victim
    _wait_until_followed(job)
    assert _course(job, "worker") == before
