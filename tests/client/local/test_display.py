"""What a run looks like while it goes, and what is left of it in the end."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from click import ClickException
from rich.console import Console

from regroup.local.display import Display, without_escapes
from regroup.local.local_run import LocalRun, keep_progress
from regroup.local.summary import sentence, summarize, write
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import CoordinatorStatus, Outcome, Recovery
from regroup_trainer.protocol.ledger import Ledger
from regroup_trainer.protocol.progress_pattern import Found
from regroup_trainer.protocol.rank_messages import CheckpointSaved, Progress
from tests.support.coordinator_simulation import make_desired

NUMBER = GenerationNumber(1, 2)


def make_status(step: int, **changes: object) -> CoordinatorStatus:
    """Two ranks that train."""
    progress = Progress(
        generation=NUMBER, rank=0, step=step, time=1.0, loss=2.5, tokens_per_second=12345.6
    )
    saved = CheckpointSaved(
        generation=NUMBER,
        rank=0,
        step=40,
        path="/v/step-40",
        size_bytes=1,
        seconds=1,
        blocking_seconds=0,
        time=1,
    )
    fields = {
        "term": 1,
        "sequence": step,
        "revision": 1,
        "phase": "running",
        "message": f"training: step {step} of 100 on 2 workers",
        "generation": NUMBER,
        "world_size": 2,
        "progress": progress,
        "total_steps": 100,
        "checkpoint": saved,
        "ledger": Ledger(
            seconds={"step": 3.0, "idle": 1.0}, lost_steps=7, restarts={"infrastructure": 1}
        ),
    }
    return CoordinatorStatus.model_validate({**fields, **changes})


def plain_line(status: CoordinatorStatus) -> str:
    """The line that is shown without a terminal."""
    out = io.StringIO()
    with Display(Console(file=out), plain=True) as display:
        display.show(status)
    return out.getvalue().rstrip().partition(" s  ")[2]


def test_a_plain_line_has_the_numbers_that_matter() -> None:
    line = plain_line(make_status(50))
    assert line.startswith("running: training: step 50 of 100 on 2 workers")
    assert plain_line(make_status(50, phase="suspended", message="suspended")).startswith(
        "suspended ["
    )
    for fact in (
        "step=50/100",
        "ranks=2",
        "loss=2.5000",
        "tokens/s=12,346",
        "checkpoint=step 40",
        "goodput=75%",
    ):
        assert fact in line


def test_a_run_that_counts_samples_shows_a_rate_of_samples() -> None:
    status = make_status(50)
    assert status.progress is not None
    progress = status.progress.model_copy(update={"counts_samples": True})
    line = plain_line(make_status(50, progress=progress))
    assert "samples/s=12,346" in line
    assert "tokens/s" not in line


def test_without_a_terminal_changes_are_printed_and_steps_only_now_and_then() -> None:
    out = io.StringIO()
    with Display(Console(file=out), plain=False) as display:
        for step in range(1, 50):
            display.show(make_status(step))
        display.note("killed worker 1")
        display.show(make_status(50, phase="recovering", message="worker 1 is lost"))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert "killed worker 1" in lines[1]
    assert "recovering: worker 1 is lost" in lines[2]


def test_a_terminal_shows_the_newest_status() -> None:
    out = io.StringIO()
    with Display(Console(file=out, force_terminal=True, width=100), plain=False) as display:
        display.show(make_status(10))
        display.show(make_status(99))
    assert "step 99 of 100" in out.getvalue()
    assert "99/100" in out.getvalue()
    assert not [line for line in out.getvalue().splitlines() if "━" in line and "/100" in line]


def test_a_coordinator_that_has_just_begun_does_not_set_the_progress_back() -> None:
    before = make_status(300)
    begun = make_status(0, term=2, phase="waiting", world_size=0, progress=None, total_steps=0)
    assert "step=300/100 ranks=0" in plain_line(keep_progress(begun, before))
    assert keep_progress(make_status(301), before) == make_status(301)
    assert keep_progress(begun, None) == begun


def test_the_summary_counts_what_was_lost() -> None:
    run = LocalRun(make_desired())
    run.status = make_status(100)
    recovery = Recovery(
        sequence=2,
        time=1.0,
        cause="infrastructure",
        restored_from="Checkpoint",
        generation=NUMBER,
        world_size_before=3,
        world_size_after=2,
    )
    run.recoveries[1, 2] = recovery
    summary = summarize(run, Outcome(result="completed", message="trained 100 steps"), 12.34)
    assert summary["recoveries"][0]["cause"] == "infrastructure"
    assert sentence(summary) == (
        "completed: 100 steps, final loss 2.5000, 1 recovery, 7 lost steps, goodput 75%, 12.3 s"
    )
    assert "2 recoveries, 1 lost step, " in sentence(
        {**summary, "lostSteps": 1, "recoveries": summary["recoveries"] * 2}
    )
    joined = recovery.model_copy(update={"cause": "resize"}).model_dump(mode="json")
    assert "1 recovery, 1 planned change, 7 lost" in sentence(
        {**summary, "recoveries": [*summary["recoveries"], joined]}
    )


def test_a_summary_that_cannot_be_written_is_named_with_what_to_do() -> None:
    with pytest.raises(ClickException, match=r"^--summary /proc/no/a.json: No such file or dir.*:"):
        write({}, Path("/proc/no/a.json"))


def test_a_program_that_reports_no_steps_has_none_in_display_and_summary() -> None:
    run = LocalRun(make_desired(script=("train.py",)))
    run.status = make_status(0, progress=None, total_steps=0)
    assert "step=" not in plain_line(run.status)
    summary = summarize(run, Outcome(result="completed", message="it ended well"), 12.34)
    assert (summary["steps"], summary["goodput"]) == (None, None)
    assert sentence(summary) == "completed: 0 recoveries, 12.3 s"


def test_a_line_has_the_sentence_of_a_failure_without_its_traceback() -> None:
    status = make_status(3, phase="failed", message="rank 0 failed\nTraceback ...\nKeyError: 1")
    assert plain_line(status).startswith("failed: rank 0 failed [")


def test_the_steps_of_a_script_are_shown_as_far_as_it_reports_them() -> None:
    progress = Progress(
        generation=NUMBER, rank=0, step=7, time=1.0, has_loss=False, steps_per_second=2.5
    )
    line = plain_line(make_status(7, progress=progress, total_steps=0))
    assert "step=7 " in line
    assert "steps/s=2.5" in line
    assert "loss" not in line
    assert "tokens" not in line
    lost = progress.model_copy(update={"has_loss": True})
    assert "loss=not finite" in plain_line(make_status(7, progress=lost))


def test_the_step_that_a_script_under_torchrun_has_written_is_shown() -> None:
    out = io.StringIO()
    with Display(Console(file=out), plain=True) as display:
        for step in range(3, 50):
            display.show_step("train.py", Found(step, 50, 0.25))
    assert out.getvalue().rstrip().endswith("running: train.py [step=3/50 loss=0.2500]")


def test_a_message_that_counts_down_is_no_news_each_second() -> None:
    out = io.StringIO()
    with Display(Console(file=out), plain=True) as display:
        for seconds in range(9, 0, -1):
            display.show(make_status(1, phase="recovering", message=f"the next try in {seconds} s"))
    assert len(out.getvalue().splitlines()) == 1


def test_a_note_is_one_line_however_long() -> None:
    out = io.StringIO()
    with Display(Console(file=out, width=80), plain=True) as display:
        display.note("worker 1 is gone " * 20)
    assert len(out.getvalue().splitlines()) == 1


def test_what_a_rank_writes_does_not_control_the_terminal() -> None:
    text = "rank 0: \x1b[2J\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b]52;c;AAAA\x1b\\ok\b\x9b\x07"
    assert without_escapes(f"{text}\tü") == "rank 0: red ok\tü"
    assert without_escapes("\x1b") == ""
    assert without_escapes("\x1b]0;never ended") == ""
    out = io.StringIO()
    with Display(Console(file=out), plain=True) as display:
        display.line(text)
    assert out.getvalue() == "rank 0: red ok\n"


def test_a_failure_that_ends_the_job_is_no_recovery() -> None:
    failed = make_status(5, phase="failed", ledger=Ledger(restarts={"application": 3}))
    assert "recoveries=2" in plain_line(failed)
    assert "recoveries=3" in plain_line(failed.model_copy(update={"phase": "running"}))
