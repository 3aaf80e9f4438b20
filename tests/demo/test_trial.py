"""`make try` with a small model, and its output when a finding does not hold."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from demo.errors import StoryError
from demo.job import SAMPLE
from demo.screen import Screen
from demo.trial import (
    Plan,
    Run,
    conclude,
    cores,
    findings,
    main,
    play,
    require_same_data,
    summary,
)
from regroup_trainer.checkpoint.history import CommittedStep
from regroup_trainer.checkpoint.layout import DataIdentity
from regroup_trainer.protocol.generation import GenerationNumber
from tests.support.waiting import wait_until

RECOVERY: dict[str, Any] = {
    "cause": "infrastructure",
    "node": "local-0",
    "world_size_before": 3,
    "world_size_after": 2,
    "down_seconds": 0.42,
    "lost_steps": 0,
    "message": "worker 0 is lost",
}
PLAN = Plan(steps=4, coordinator_step=1, worker_step=3)


def small_job(folder: Path) -> Path:
    """The job of the trial with the smallest model."""
    job = folder / "job.yaml"
    job.write_text(SAMPLE.read_text().replace("preset: 1m", "preset: tiny"))
    return job


DATA = DataIdentity(fingerprint="a1", samples=9, seed=0, global_batch_size=1, sequence_length=8)


def make_run(**changes: Any) -> Run:
    """Four steps, as an undisturbed run leaves them."""
    steps = tuple(
        CommittedStep(
            generation=GenerationNumber(1, 1), step=step, world=3, epoch=0, first=0, count=1,
            hash=0, loss=5.0 - step,
        )
        for step in range(1, 5)
    )  # fmt: skip
    run = Run(committed=steps, data=DATA, problems=(), coordinators=1, recoveries=(), seconds=1.0)
    return dataclasses.replace(run, **changes)


def make_disturbed(**changes: Any) -> Run:
    """The same, with both failures."""
    return make_run(**{"coordinators": 2, "recoveries": (RECOVERY,), **changes})


def with_step(number: int, **changes: Any) -> tuple[CommittedStep, ...]:
    """The four steps, one of them changed."""
    return tuple(
        step.model_copy(update=changes) if step.step == number else step
        for step in make_run().committed
    )


def test_runs_on_different_data_are_not_compared() -> None:
    require_same_data(make_run(), make_disturbed())
    other = make_disturbed(data=DATA.model_copy(update={"fingerprint": "b2"}))
    with pytest.raises(StoryError, match=r"different data .*'a1'.*'b2'"):
        require_same_data(make_run(), other)


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files; its path is short, since a socket may lie in it. torch's own
    cache lies there too, unless this process has compiled something before: it has its own place.
    """
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("torch")))
    return folder


def test_a_folder_that_cannot_be_emptied_is_named_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "build").write_text("")
    folder = tmp_path / "build" / "try"
    assert main(dataclasses.replace(PLAN, folder=folder)) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert f"cannot use the folder {folder} (Not a directory: {folder})" in shown
    assert "remove" in shown
    assert "regroup run" not in shown


@pytest.mark.long
@pytest.mark.timeout(600)
def test_killed_processes_do_not_change_the_losses_and_leave_nothing_outside_the_folder(
    tmp_path: Path, temporary: Path
) -> None:
    plan = Plan(small_job(tmp_path), tmp_path / "try", 400, coordinator_step=40, worker_step=100)
    runs = play(plan, Screen())
    found = findings(*runs, plan)
    assert [finding.sentence for finding in found if not finding.holds] == []
    assert len(runs[1].losses) == 400
    assert {path.name for path in tmp_path.iterdir()} == {"job.yaml", "try"}
    assert list(temporary.iterdir()) == []


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupted_trial_saves_ends_and_leaves_nothing_outside_the_folder(
    tmp_path: Path, temporary: Path
) -> None:
    job, folder = small_job(tmp_path), tmp_path / "try"
    program = (
        "import signal, sys; from pathlib import Path; from demo.trial import Plan, main; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # a job in the background
        "sys.exit(main(Plan(Path(sys.argv[1]), Path(sys.argv[2]), steps=10**6)))"
    )
    trial = subprocess.Popen(
        [sys.executable, "-c", program, str(job), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    history = folder / "undisturbed" / "history"
    wait_until("the first step", lambda: any(history.glob("*.jsonl")), seconds=120)
    os.killpg(trial.pid, signal.SIGINT)
    output, _ = trial.communicate(timeout=60)
    assert trial.returncode == 130, output
    assert "Interrupted" in output.splitlines()[-1]
    assert any((folder / "undisturbed" / "checkpoints").glob("step-*"))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("disturbed", "sentence"),
    [
        (make_disturbed(coordinators=1), "The coordinator was killed"),
        (make_disturbed(committed=with_step(2, generation=(2, 1))), "The coordinator was killed"),
        (make_disturbed(committed=with_step(3, generation=(2, 1))), "The coordinator was killed"),
        (make_disturbed(recoveries=()), "Worker 0 was killed"),
        (make_disturbed(committed=with_step(4, loss=1.01)), "Same loss at all 4 steps"),
        (make_disturbed(committed=with_step(4, loss=None)), "Same loss at all 4 steps"),
        (make_disturbed(committed=make_run().committed[:3]), "Same loss at all 3 steps"),
        (make_disturbed(problems=("step 3 is missing",)), "step 3 is missing"),
    ],
)
def test_a_finding_that_does_not_hold_is_marked_and_ends_with_1(
    disturbed: Run, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = (make_run(), disturbed)
    found = findings(*runs, PLAN)
    assert [finding.holds for finding in found].count(False) == 1
    assert conclude(runs, found, Screen()) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    assert sentence in line


def test_the_summary_has_the_seconds_of_both_runs_and_the_number_of_cores() -> None:
    runs = (make_run(), make_disturbed(seconds=2.345))
    kept = summary(runs, findings(*runs, PLAN), 4.56)
    assert list(kept["findings"].values()) == [True, True, True]
    assert kept["seconds"] == {"undisturbed": 1.0, "with failures": 2.3, "all": 4.6}
    assert kept["cores"] == cores() >= 1


def test_what_was_shown_takes_three_lines_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    runs = (make_run(), make_disturbed())
    assert conclude(runs, findings(*runs, PLAN), Screen()) == 0
    _, *shown, times = capsys.readouterr().out.splitlines()
    assert times.endswith(f"Undisturbed run 1 s, run with failures 1 s, on {cores()} cores")
    assert shown == [
        "1. The coordinator was killed: the workers trained on, a new one took over.",
        "2. Worker 0 was killed: the others trained on after 0.4 s, no step was lost.",
        "3. Same loss at all 4 steps (to 0.0e+00), no sample skipped or repeated.",
    ]
    assert max(map(len, shown)) <= 80
