"""Lightning, transformers and Accelerate lose at most what they have not saved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regroup_trainer.integrations.stop_agreement import STOPPED
from regroup_trainer.integrations.whole_folders import WholeFolders
from tests.support.local_job import make_run, play

EXAMPLES = Path(__file__).parents[3] / "examples/7-other-trainers"
ENDED_EARLY = Path(__file__).parents[2] / "support/programs/ended_early.py"
COUNT = ("--nproc-per-node", "2")
TRAINERS = ("accelerate", "lightning", "transformers")
STEP = 45
"""In the middle of an epoch, and five steps after a checkpoint."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def words(trainer: str, result: Path) -> list[str]:
    script = str(EXAMPLES / f"train_{trainer}.py")
    return [script, "--epochs", "2", "--samples", "400", "--result", str(result)]


def torchrun(directory: Path, *command: str) -> int:
    """Run a program as two ranks under stock torchrun; returns its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *COUNT, *command],
        env={**os.environ, "REGROUP_DIRECTORY": str(directory), "OMP_NUM_THREADS": "1"},
        timeout=280,
        check=False,
        capture_output=True,
        text=True,
    )
    print(done.stdout, done.stderr)
    return done.returncode


@pytest.fixture(scope="module", params=TRAINERS)
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, torch.Tensor]]:
    """A trainer, and the parameters that a run of it under stock torchrun ends with."""
    folder = tmp_path_factory.mktemp(request.param)
    assert torchrun(folder / "job", *words(request.param, folder / "result.pt")) == 0
    return request.param, torch.load(folder / "result.pt")


def require_same(found: Path, expected: dict[str, torch.Tensor]) -> None:
    for name, value in torch.load(found).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5, msg=name)


def test_a_lost_rank_costs_only_the_steps_since_the_last_save(
    undisturbed: tuple[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    trainer, expected = undisturbed
    result = tmp_path / "result.pt"
    script = (str(ENDED_EARLY), "SIGKILL", str(STEP), *words(trainer, result))
    run = make_run(tmp_path / "job", 1, script=script, replicas=2, min_replicas=2)
    lines: list[str] = []
    run.on_line = lines.append
    outcome = play(run)
    assert outcome.result == "completed", "\n".join(lines)
    assert run.status is not None
    assert sum(run.status.ledger.restarts.values()) == 1
    require_same(result, expected)


def test_a_run_that_is_asked_to_stop_saves_and_goes_on_from_there(
    undisturbed: tuple[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    trainer, expected = undisturbed
    result, job = tmp_path / "result.pt", tmp_path / "job"
    early = (str(ENDED_EARLY), "SIGTERM", str(STEP), *words(trainer, result))
    assert torchrun(job, *early) != 0
    newest = WholeFolders(job / "saves").newest()
    assert newest is not None
    assert newest.name in {f"checkpoint-{STEP + 1}", f"checkpoint-{STEP + 2}"}
    assert not result.exists()
    assert STOPPED == 143
    assert torchrun(job, *words(trainer, result)) == 0
    require_same(result, expected)


def test_a_suspended_job_has_saved_its_last_step(tmp_path: Path) -> None:
    words = (str(EXAMPLES / "train_accelerate.py"), "--epochs", "2", "--samples", "16000")
    run = make_run(tmp_path / "job", 1, script=words, replicas=2, min_replicas=2)

    def suspend_after_forty_steps(line: str) -> None:
        if "step 40 " in line:
            run.suspend()

    run.on_line = suspend_after_forty_steps
    outcome = play(run)
    assert outcome.result == "suspended", outcome.message
    logs = [path.read_text() for path in (tmp_path / "job/logs").glob("*-w*.log")]
    assert all(f"ended with exit code {STOPPED} (no failure of its own)" in log for log in logs), (
        logs
    )  # no failure
    newest = WholeFolders(tmp_path / "job/saves").newest()
    assert newest is not None
    assert int(newest.name.rpartition("-")[2]) > 40
