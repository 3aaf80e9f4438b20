"""Scripts of the usual shapes run on a cluster, unchanged and with a kill, under both launchers."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.any_script import CASES, SHAPES, Shape, difference, read
from demo.kubectl import CommandError
from tests.support.jobs import Job
from tests.support.waiting import wait_until
from tools.pythons import ROOT
from tools.venv import run_uv, uv_binary

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]
EPOCHS, KILL_AT = 100, 3
ROUNDING = 1e-5
TRIED = ("ddp", "fsdp2", "accelerate", "lightning", "transformers")
LAUNCHERS = ("regroup", "torchrun")
PROGRAMS = ROOT / "tests/support/programs"
WRONG = ("first_ddp.py", "meets_at_localhost.py")
FAILS_SECONDS = 120
LIBRARIES = ("accelerate", "lightning", "transformers")
WITHOUT = "torch; sys_platform == 'never'"  # the image has it


@pytest.mark.parametrize("case", TRIED)
def test_a_script_ends_as_if_no_pod_had_been_killed(
    case: str, installation: Installation, tmp_path: Path
) -> None:
    shape = CASES[case]
    volume = installation.stage.volume(installation.namespace)
    install_libraries(volume / "libraries", tmp_path)
    files = [f"--from-file={path}" for path in sorted(SHAPES.glob("*.py"))]
    installation.kubectl("create", "configmap", "scripts", "-n", installation.namespace, *files)
    undisturbed = run_undisturbed(shape, tmp_path)
    arguments = ("$REGROUP_DIRECTORY", str(EPOCHS))
    jobs = [
        installation.start(manifest(shape.script, launcher, *arguments)) for launcher in LAUNCHERS
    ]
    for job in jobs:
        wait_for_line(installation, job, f"epoch {KILL_AT}: loss")
        victim = job.workers()[1]["metadata"]["name"]
        installation.kubectl(
            "delete", "pod", victim, "-n", job.namespace, "--grace-period=0", "--force"
        )
    for job in jobs:
        job.wait_for_condition("Complete", seconds=400)
        restarts = job.status()["restarts"]
        assert (restarts["application"], sum(restarts.values())) == (0, 1)
        (final,) = volume.glob(f"**/{job.name}-*/final.pt")
        assert difference(final, read(undisturbed)) <= ROUNDING


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_script_that_was_only_tried_on_one_machine_fails_with_what_to_change(
    launcher: str, installation: Installation
) -> None:
    files = [f"--from-file={PROGRAMS / name}" for name in WRONG]
    installation.kubectl("create", "configmap", "scripts", "-n", installation.namespace, *files)
    jobs = [installation.start(manifest(name, launcher)) for name in WRONG]
    for job in jobs:
        job.wait_for_condition("Failed", seconds=FAILS_SECONDS)
        message = job.status()["message"]
        assert "ConfigurationError: " in message
        assert ": leave " in message  # rank and world_size, or MASTER_ADDR
        reasons = {c["type"]: c["reason"] for c in job.status()["conditions"]}
        assert reasons["Failed"] == "FailsAtStart"


def manifest(script: str, launcher: str, *arguments: str) -> dict[str, Any]:
    """A job that runs the script on two workers, with the libraries from the shared volume."""
    container = {
        "name": "trainer",
        "command": ["python", script, *arguments],
        "workingDir": "/scripts",
        "env": [
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "PYTHONPATH", "value": "/libraries"},
            {"name": "HF_HUB_OFFLINE", "value": "1"},
        ],
        "volumeMounts": [
            {"name": "scripts", "mountPath": "/scripts"},
            {
                "name": "shared",
                "mountPath": "/libraries",
                "subPath": "libraries",
                "readOnly": True,
            },
        ],
    }
    volumes = [
        {"name": "scripts", "configMap": {"name": "scripts"}},
        {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}},
    ]
    return {
        "apiVersion": "regroup.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": f"{Path(script).stem.replace('_', '-')}-{launcher}"},
        "spec": {
            "launcher": launcher,
            "replicas": 2,
            "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "shared"}}},
            "template": {"spec": {"containers": [container], "volumes": volumes}},
        },
    }


def install_libraries(target: Path, scratch: Path) -> None:
    """Install the pinned libraries for the Python of the image."""
    (version,) = re.findall(
        r"^ARG BASE_IMAGE=python:(3\.\d+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    overrides = scratch / "overrides.txt"
    overrides.write_text(WITHOUT)
    run_uv(
        uv_binary(),
        *("pip", "install", "--quiet", "--target", str(target), "--python-version", version),
        *("--constraint", str(ROOT / "requirements/dev.txt"), "--override", str(overrides)),
        *LIBRARIES,
    )


def run_undisturbed(shape: Shape, folder: Path) -> Path:
    """Run the script under stock torchrun on this machine; returns its final parameters."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [*torchrun, SHAPES / shape.script, folder, str(EPOCHS)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=300,
    )
    return folder / "final.pt"


def wait_for_line(installation: Installation, job: Job, words: str) -> None:
    """Wait until a worker has written it. A container that is only starting has no log."""

    def is_written() -> bool:
        for pod in job.pods("worker"):
            with contextlib.suppress(CommandError):
                log = installation.kubectl("logs", pod["metadata"]["name"], "-n", job.namespace)
                if words in log:
                    return True
        return False

    wait_until(f"{words!r} of {job.name}", is_written, seconds=240, every=0.5)
