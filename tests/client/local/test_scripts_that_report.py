"""Scripts without a Session that show their steps: by `report`, or by what they write."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from regroup.local.local_run import LocalRun
from regroup.local.summary import sentence, summarize
from regroup.local.torchrun_run import TorchrunRun, Wanted
from regroup_operator.api.user_script import Script
from tests.support.local_job import make_run, play
from tests.support.optional_packages import needs_re2

pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]

SAVES = """
import os, pathlib, signal, sys
from regroup_trainer import report
saved = pathlib.Path(os.environ["REGROUP_DIRECTORY"], "saved")
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
done = int(saved.read_text()) if again else 0
for step in range(done, 40):
    report(step=step + 1, total=40, loss=1 / (step + 1))
    if os.environ["RANK"] == "0" and (step + 1) % 10 == 0:
        saved.with_suffix(".new").write_text(str(step + 1))
        saved.with_suffix(".new").replace(saved)  # whole, also for the rank that has begun again
    if step + 1 == 25 and not again:
        pathlib.Path(sys.argv[1], os.environ["RANK"]).touch()
        signal.pause()  # until it is killed; the newest steps were not sent
"""
HANGS = """
import os, signal, time
from regroup_trainer import report
def hang():
    while True:
        signal.pause()  # which the request for stacks ends
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
report(step=1, total=4)
if not again:
    report(busy="evaluation")
    time.sleep(9)
report(step=2)
if not again and os.environ["RANK"] == "1":
    report(step=3)
    hang()
if not again:
    hang()  # as in a collective with rank 1
report(step=4, total=4)
"""
DRAWS = """
import sys
from tqdm import tqdm
print("it starts")
bar = tqdm(range(200), mininterval=0, file=sys.stdout if "--print" in sys.argv else sys.stderr)
for step in bar:
    bar.set_postfix(loss=1 / (step + 1))
print("it has ended")
"""
PATTERN = r"(?P<step>\d+)/(?P<total>\d+) \[.*loss=(?P<loss>[^,\]]+)"


def make_script(folder: Path, program: str, *arguments: str, **desired: Any) -> LocalRun:
    path = folder / "train.py"
    path.write_text(program)
    fields = {"script": (str(path), *arguments), "replicas": 2, "backoff_seconds": 0.0, **desired}
    return make_run(folder / "job", 1, **fields)


def test_the_steps_that_a_killed_script_does_again_are_counted(tmp_path: Path) -> None:
    run = make_script(tmp_path, SAVES, str(tmp_path))
    ready = (lambda _: len(list(tmp_path.glob("[01]"))) == 2, lambda run: run.kill_rank(0))
    outcome = play(run, [ready])
    assert outcome.result == "completed", outcome.message
    assert outcome.message == "the program ended well on 2 ranks, after step 40"
    summary = summarize(run, outcome, 1.0)
    assert (summary["steps"], summary["lostSteps"]) == (40, 5)
    assert summary["finalLoss"] == pytest.approx(1 / 40)
    (recovery,) = run.recoveries.values()
    assert (recovery.restored_from, recovery.resumed_from_step) == ("Script", 20)
    assert sentence(summary).startswith(
        "completed: 40 steps, final loss 0.0250, 1 recovery, 5 lost"
    )


@pytest.mark.long
def test_a_script_that_hangs_is_started_again_and_one_that_is_busy_is_not(tmp_path: Path) -> None:
    run = make_script(tmp_path, HANGS, progress_timeout_seconds=5)
    busy: list[str] = []
    acts = [(lambda s: " is busy (evaluation)" in s.message, lambda r: busy.append("seen"))]
    outcome = play(run, acts)
    assert outcome.result == "completed", outcome.message
    assert busy == ["seen"]
    assert run.status is not None
    assert run.status.ledger.restarts == {"hang": 1}
    (recovery,) = run.recoveries.values()
    assert recovery.detect_seconds < 9.0
    assert run.status.ledger.seconds["evaluation"] > 8.0


@needs_re2
@pytest.mark.parametrize("arguments", [(), ("--print",)], ids=["stderr", "stdout"])
def test_the_steps_of_a_progress_bar_are_found(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    run = make_script(tmp_path, DRAWS, *arguments, progress_pattern=PATTERN)
    outcome = play(run)
    assert outcome.message == "the program ended well on 2 ranks, after step 200"
    assert run.status is not None
    assert run.status.progress is not None
    assert run.status.total_steps == 200
    assert run.status.progress.loss == pytest.approx(1 / 200, abs=1e-4)


@needs_re2
def test_what_a_script_reports_counts_more_than_what_it_writes(tmp_path: Path) -> None:
    program = "from regroup_trainer import report\nreport(step=3)\nprint('step 7')\n"
    run = make_script(tmp_path, program, progress_pattern=r"step (?P<step>\d+)")
    assert play(run).message == "the program ended well on 2 ranks, after step 3"


@needs_re2
def test_under_torchrun_the_steps_of_a_progress_bar_are_found(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DRAWS)
    run = TorchrunRun(
        Wanted(
            job="mine",
            script=Script(sys.executable, ("train.py",), {}),
            replicas=1,
            nnodes="1:1",
            ranks=1,
            max_restarts=0,
            working_directory=tmp_path,
            directory=tmp_path / "run",
            progress_pattern=PATTERN,
        )
    )
    outcome = asyncio.run(run.run())
    assert outcome.result == "completed", outcome.message
    assert run.step is not None
    assert (run.step.step, run.step.total) == (200, 200)
