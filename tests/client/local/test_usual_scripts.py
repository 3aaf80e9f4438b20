"""Scripts of the usual shapes, unchanged under both launchers: killed on the way, they end as they
do undisturbed.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regroup.local.local_run import LocalRun
from regroup.local.torchrun_run import TorchrunRun, Wanted
from regroup_operator.api.user_script import Script
from regroup_trainer.protocol.job_status import Outcome
from tests.support import local_job

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
PROGRAMS = Path(__file__).parents[2] / "support" / "programs"
EPOCHS = {"snapshots_ddp": 300, "sharded_dcp": 60, "elastic_variables": 300, "first_ddp": 300}
"""Program -> epochs: enough that it still runs when the kill comes."""
ONE_WORKER = "first_ddp"
"""It takes LOCAL_RANK for its rank, so that both ranks must be of one worker."""
COUNTS_APART = ("worker", "elastic_variables", "torchrun")
"""Each agent of stock torchrun counts its own restarts. The one that replaces another begins at 0,
so that ranks which key a store by the count do not meet.
"""


def make_run(launcher: str, folder: Path, *script: str, workers: int = 2) -> LocalRun | TorchrunRun:
    """Two ranks, on workers that are all needed."""
    ranks = 2 // workers
    if launcher == "regroup":
        run = local_job.make_run(
            folder / "run",
            1,
            script=script,
            replicas=workers,
            min_replicas=workers,
            max_replicas=workers,
        )
        run.ranks, run.replace_seconds = ranks, 0.0
        return run
    wanted = Wanted(
        job="test",
        script=Script("python", script),
        replicas=workers,
        nnodes=f"{workers}:{workers}",
        ranks=ranks,
        max_restarts=10,
        working_directory=folder,
        directory=folder / "run",
    )
    return TorchrunRun(wanted, replace_seconds=0.0)


def play(run: LocalRun | TorchrunRun) -> Outcome:
    async def bounded() -> Outcome:
        async with asyncio.timeout(280):
            return await run.run()

    return asyncio.run(bounded())


def final(folder: Path) -> dict[str, torch.Tensor]:
    """What the program has computed in the end."""
    found: dict[str, torch.Tensor] = torch.load(folder / "final.pt")
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each program, which stock torchrun ran to its end."""
    root = tmp_path_factory.mktemp("undisturbed")
    for name, epochs in EPOCHS.items():
        (root / name).mkdir()
        script = [str(PROGRAMS / f"{name}.py"), str(root / name), str(epochs)]
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [*script, "spawn"] if name == ONE_WORKER else [*torchrun, *script]
        # Its end does not count: gloo aborts at times when all is done.
        subprocess.run([sys.executable, *command], check=False, timeout=200)
    return root


@pytest.mark.parametrize(
    ("struck", "name", "launcher"),
    [
        case
        for case in itertools.product(("rank", "worker"), EPOCHS, ("regroup", "torchrun"))
        if case != COUNTS_APART
    ],
)
def test_a_script_that_was_killed_ends_with_the_parameters_of_one_that_was_not(
    tmp_path: Path, undisturbed: Path, launcher: str, name: str, struck: str
) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    script = (str(PROGRAMS / f"{name}.py"), str(folder), str(EPOCHS[name]))
    workers = 1 if name == ONE_WORKER else 2
    run = make_run(launcher, tmp_path, *script, workers=workers)
    killed: list[bool] = []
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        if line == "rank 1: epoch 3 on rank 1." and not killed:
            killed.append(run.kill_rank(1) if struck == "rank" else run.kill_worker(workers - 1))

    run.on_line = on_line
    outcome = play(run)
    assert outcome.result == "completed", outcome.message
    assert killed == [True]
    assert lines.count(f"rank 0: epoch {EPOCHS[name] - 1} on rank 0.") == 1
    expected, found = final(undisturbed / name), final(folder)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.parametrize("launcher", ["regroup", "torchrun"])
def test_a_rank_that_aborts_at_its_exit_does_not_undo_the_work(
    tmp_path: Path, launcher: str
) -> None:
    script = (str(PROGRAMS / "snapshots_ddp.py"), str(tmp_path), "3", "abort")
    run = make_run(launcher, tmp_path, *script)
    lines: list[str] = []
    run.on_line = lines.append
    outcome = play(run)
    assert outcome.result == "completed", outcome.message
    assert lines.count("rank 1: epoch 0 on rank 1.") == 1


@pytest.mark.parametrize("launcher", ["regroup", "torchrun"])
def test_a_process_that_owns_several_devices_trains(tmp_path: Path, launcher: str) -> None:
    script = (str(PROGRAMS / "two_devices.py"), str(tmp_path), "cpu", "cpu")
    outcome = play(make_run(launcher, tmp_path, *script))
    assert outcome.result == "completed", outcome.message
    first, second = torch.load(tmp_path / "final.pt")["of ranks"]
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
