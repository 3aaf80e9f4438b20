"""Scripts of the usual shapes run on a cluster, unchanged and with a kill, under both launchers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.any_script import CASES, SHAPES, difference, read
from demo.kubectl import CommandError
from regroup.local.processes import kill_rank_of_torchrun
from tests.support.jobs import Job
from tests.support.waiting import wait_until
from tools.pythons import ROOT
from tools.venv import run_uv, uv_binary

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]
KILL_RANK_AT, KILL_POD_AT = 3, 20
EPOCHS = {"ddp": 60, "fsdp2": 30, "accelerate": 60, "lightning": 60, "transformers": 60}
"""Case of `bench.any_script` -> so many that it still runs when the second kill comes. An epoch of
fsdp2 takes over a second: it saves a distributed checkpoint.
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
QUICK = {
    "first_ddp.py": (4000, {"replicas": 1, "nprocPerNode": 2}, (), ("spawn",)),
    "elastic_variables.py": (3000, {"replicas": 2}, TORCHRUN, ()),
}
"""Script that takes milliseconds for an epoch -> how many, so that it still runs when the kill
comes; its job: the first takes LOCAL_RANK for its rank; and what its author put before and after
it: the first meets at an address of its own, which torchrun's ranks never reach.
"""
LAUNCHERS = ("regroup", "torchrun")
COMMANDS = {
    "ddp": (LAUNCHERS, ("torchrun", "--nproc-per-node=1", "ddp_snapshots.py")),
    "fsdp2": (LAUNCHERS, ("python", "-m", "fsdp_checkpoints")),
    "accelerate": (("torchrun",), ("accelerate", "launch", "accelerate_loop.py")),
    "lightning": (("regroup",), ("python", "lightning_fit.py")),
    "transformers": (("regroup",), ("python", "trainer_class.py")),
}
"""Case of `bench.any_script` -> its launchers here, and its command. On one machine, all run under
both (tests/client/local/test_usual_scripts.py).
"""
RESTARTS = {"regroup": (1, 2), "torchrun": (0, 1)}
"""Those of the program, and all. A pod that is deleted by force counts as preemption or
infrastructure: it may or may not get its SIGTERM. torchrun counts the restarts of its ranks itself.
"""
PROGRAMS = ROOT / "tests/support/programs"
WRONG = {
    "first_ddp.py": ((), ": leave "),  # rank and world_size, or MASTER_ADDR
    "meets_at_localhost.py": ((), ": leave MASTER_ADDR"),
    "own_ranks.py": (("spawn",), "so call the function itself once"),
}
"""Script -> its arguments, and what to change."""
FAILS_SECONDS = 120
LIBRARIES = ("accelerate", "lightning", "transformers")
WITHOUT = "torch; sys_platform == 'never'"  # the image has it


@pytest.fixture
def beside() -> Iterator[Executor]:
    """Runs one thing beside the test. It has the time in which the nodes wait: they weigh more."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.mark.parametrize("case", COMMANDS)
def test_a_script_ends_as_if_neither_a_rank_nor_a_pod_had_been_killed(
    case: str, installation: Installation, beside: Executor, tmp_path: Path
) -> None:
    shape, (launchers, command) = CASES[case], COMMANDS[case]
    script = [*TORCHRUN, str(SHAPES / shape.script)]
    undisturbed = beside.submit(run_undisturbed, script, tmp_path, EPOCHS[case])
    volume = installation.stage.volume(installation.namespace)
    (volume / "libraries").mkdir()
    if shape.library != "torch":
        install_libraries(volume / "libraries", tmp_path)
    files = [f"--from-file={path}" for path in sorted(SHAPES.glob("*.py"))]
    installation.kubectl("create", "configmap", "scripts", "-n", installation.namespace, *files)
    jobs = {
        launcher: installation.start(
            manifest(
                f"{case}-{launcher}", launcher, *command, "$REGROUP_DIRECTORY", str(EPOCHS[case])
            )
        )
        for launcher in launchers
    }
    for launcher, job in jobs.items():
        wait_for_line(installation, job, f"epoch {KILL_RANK_AT}: loss")
        kill_rank(installation, job, launcher, 1)
    for job in jobs.values():
        wait_for_line(installation, job, f"epoch {KILL_POD_AT}: loss")
        victim = job.workers()[1]["metadata"]["name"]
        installation.kubectl(
            "delete", "pod", victim, "-n", job.namespace, "--grace-period=0", "--force"
        )
    for launcher, job in jobs.items():
        job.wait_for_condition("Complete", seconds=400)
        restarts = job.status()["restarts"]
        assert (restarts["application"], sum(restarts.values())) == RESTARTS[launcher]
        (final,) = volume.glob(f"**/{job.name}-*/final.pt")
        assert difference(final, read(undisturbed.result())) == 0


@pytest.mark.parametrize("name", QUICK)
def test_a_script_ends_as_if_a_rank_of_it_had_not_been_killed(
    name: str, installation: Installation, beside: Executor, tmp_path: Path
) -> None:
    script, (epochs, size, before, after) = PROGRAMS / name, QUICK[name]
    undisturbed = beside.submit(run_undisturbed, [*before, str(script)], tmp_path, epochs, *after)
    volume = installation.stage.volume(installation.namespace)
    installation.kubectl(
        "create", "configmap", "scripts", "-n", installation.namespace, f"--from-file={script}"
    )
    command = ("python", name, "$REGROUP_DIRECTORY", str(epochs))
    stem = script.stem.replace("_", "-")
    jobs = {
        launcher: installation.start(manifest(f"{stem}-{launcher}", launcher, *command, **size))
        for launcher in LAUNCHERS
    }
    for launcher, job in jobs.items():
        wait_for_line(installation, job, f"epoch {KILL_RANK_AT} on rank 1.")
        kill_rank(installation, job, launcher, 1)
    for job in jobs.values():
        job.wait_for_condition("Complete", seconds=300)
        (final,) = volume.glob(f"**/{job.name}-*/final.pt")
        assert difference(final, read(undisturbed.result())) == 0


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_script_that_was_only_tried_on_one_machine_fails_with_what_to_change(
    launcher: str, installation: Installation
) -> None:
    files = [f"--from-file={PROGRAMS / name}" for name in WRONG]
    installation.kubectl("create", "configmap", "scripts", "-n", installation.namespace, *files)
    jobs = [
        installation.start(
            manifest(
                f"{Path(name).stem.replace('_', '-')}-{launcher}",
                launcher,
                *("python", name, *arguments),
            )
        )
        for name, (arguments, _) in WRONG.items()
    ]
    for job, (_, advice) in zip(jobs, WRONG.values(), strict=True):
        job.wait_for_condition("Failed", seconds=FAILS_SECONDS)
        message = job.status()["message"]
        assert "ConfigurationError: " in message
        assert advice in message
        reasons = {c["type"]: c["reason"] for c in job.status()["conditions"]}
        assert reasons["Failed"] == "FailsAtStart"


def manifest(name: str, launcher: str, *command: str, **changes: Any) -> dict[str, Any]:
    """A job of two workers that runs a script, with the libraries from the shared volume."""
    container = {
        "name": "trainer",
        "command": [*command],
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
        "metadata": {"name": name},
        "spec": {
            "launcher": launcher,
            "replicas": 2,
            "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "shared"}}},
            "template": {"spec": {"containers": [container], "volumes": volumes}},
            **changes,
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


def run_undisturbed(script: list[str], folder: Path, epochs: int, *arguments: str) -> Path:
    """Run two ranks of a script on this machine; returns their final parameters."""
    # Its end does not count: gloo aborts at times when all is done.
    subprocess.run(
        [sys.executable, *script, str(folder), str(epochs), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=600,
    )
    return folder / "final.pt"


def kill_rank(installation: Installation, job: Job, launcher: str, rank: int) -> None:
    """SIGKILL the process of a rank."""
    if launcher == "regroup":
        os.kill(installation.process_of_rank(job, rank), signal.SIGKILL)
        return
    processes = [pid for pod in job.workers() for pid in installation.processes(pod)]
    assert kill_rank_of_torchrun(processes, rank)


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
