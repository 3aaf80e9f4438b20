"""launcher torchrun on a real cluster: it trains, a killed pod is replaced, suspend and resume keep
what was saved.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from demo.kubectl import CommandError
from tests.support.jobs import Job
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]
EPOCHS = 16
"""Enough that it is not done before all was done to it."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "3-language-models"


def log_of(installation: Installation, job: Job) -> str:
    """What all its workers that are there have printed; a container that is only starting has no
    log.
    """
    text = ""
    for pod in job.pods("worker"):
        with contextlib.suppress(CommandError):
            text += installation.kubectl("logs", pod["metadata"]["name"], "-n", job.namespace)
    return text


def resumed_at(installation: Installation, job: Job) -> int:
    """The latest epoch that a generation began with."""
    return max([0, *map(int, re.findall(r"epoch (\d+) is next", log_of(installation, job)))])


def test_a_killed_pod_is_replaced_and_a_suspended_job_goes_on_with_its_epochs(
    installation: Installation,
) -> None:
    files = [f"--from-file={path}" for path in sorted(EXAMPLE.glob("*.py"))]
    installation.kubectl(
        "create", "configmap", "language-models", "-n", installation.namespace, *files
    )
    manifest = yaml.safe_load((EXAMPLE / "torchrun.yaml").read_text())
    manifest["spec"]["template"]["spec"]["containers"][0]["args"] = [
        "--zero",
        "--epochs",
        str(EPOCHS),
    ]
    job = installation.start(manifest)
    wait_until(
        "two epochs", lambda: "epoch 1 on" in log_of(installation, job), seconds=180, every=1
    )
    assert {pod["metadata"]["labels"]["regroup.dev/role"] for pod in job.pods()} == {
        "store",
        "worker",
    }
    assert job.status()["phase"] == "Running"

    victim = job.workers()[0]["metadata"]["name"]
    installation.kubectl(
        "delete", "pod", victim, "-n", job.namespace, "--grace-period=0", "--force"
    )
    wait_until(
        "another generation", lambda: resumed_at(installation, job) > 0, seconds=120, every=1
    )
    assert job.status()["restarts"]["infrastructure"] == 1

    job.suspend()
    wait_until("its pods to go", lambda: not job.pods(), seconds=90)
    job.patch(suspend=False)
    job.wait_for_condition("Complete", seconds=400)
    assert resumed_at(installation, job) > 0, "it began anew"
    assert "epoch 0 on" not in log_of(installation, job)
    assert job.status()["coordinatorTerm"] == 2
