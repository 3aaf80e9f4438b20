"""What an agent makes of the steps of a script."""

from __future__ import annotations

import pytest

from regroup_trainer.agent.script_progress import ScriptProgress, ScriptReports
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.rank_messages import Busy, LastLine, Progress, Restored, ScriptStep

NUMBER = GenerationNumber(1, 1)


def make_step(step: int, **changes: object) -> ScriptStep:
    fields = {"generation": NUMBER, "rank": 0, "step": step, "has_loss": False, "time": 9.0}
    return ScriptStep.model_validate({**fields, **changes})


def make_busy(doing: str = "evaluation", *, lasting: bool = True) -> Busy:
    return Busy(generation=NUMBER, rank=0, doing=doing, step=0, lasting=lasting)


def progress_of(script: ScriptProgress, step: int, now: float) -> Progress:
    report = script.on_step(make_step(step), now)[-1]
    assert isinstance(report, Progress)
    return report


def test_the_first_step_shows_where_the_script_has_resumed() -> None:
    restored, progress = ScriptProgress(0.0).on_step(make_step(41, total=100, loss=2.5), 3.0)
    assert isinstance(restored, Restored)
    assert (restored.step, restored.restored_from, restored.total_steps) == (40, "Script", 100)
    assert isinstance(progress, Progress)
    assert (progress.step, progress.total_steps, progress.loss) == (41, 100, 2.5)


def test_a_script_that_counts_from_zero_resumes_at_zero() -> None:
    assert ScriptProgress(0.0).on_step(make_step(0), 3.0)[0].step == 0


def test_only_the_first_step_shows_it() -> None:
    script = ScriptProgress(0.0)
    script.on_step(make_step(1), 1.0)
    assert [type(report) for report in script.on_step(make_step(2), 2.0)] == [Progress]


def test_time_counts_from_the_first_step_on() -> None:
    script = ScriptProgress(0.0)
    progress_of(script, 1, 30.0)
    progress = progress_of(script, 5, 32.0)
    assert progress.seconds["step"] == 2.0
    assert progress.steps_per_second == 2.0


def test_the_longest_pause_is_known_from_the_start_on() -> None:
    script = ScriptProgress(0.0)
    assert progress_of(script, 1, 30.0).report_seconds == 30.0
    assert progress_of(script, 2, 31.0).report_seconds == 30.0
    assert progress_of(script, 3, 91.0).report_seconds == 60.0


def test_the_time_of_something_else_is_neither_a_step_nor_a_pause() -> None:
    script = ScriptProgress(0.0)
    progress_of(script, 7, 1.0)
    assert script.on_busy(make_busy(), 2.0).step == 7
    script.on_busy(make_busy(), 100.0)
    progress = progress_of(script, 8, 200.0)
    assert progress.seconds == {"step": 1.0, "evaluation": 198.0}
    assert progress.report_seconds == 1.0
    assert progress_of(script, 9, 203.0).seconds["step"] == 4.0


def test_after_a_step_back_the_rate_is_that_of_the_new_steps() -> None:
    script = ScriptProgress(0.0)
    for step, now in ((90, 1.0), (100, 2.0), (50, 3.0)):
        progress_of(script, step, now)
    assert progress_of(script, 54, 5.0).steps_per_second == 2.0


def test_a_rank_that_reports_by_itself_is_known() -> None:
    reports = ScriptReports(0.0)
    reports.on_written(make_step(1), 1.0)
    assert not reports.reports(0)
    assert len(reports.on_report(make_step(2), 2.0)) == 1  # the first has shown where it resumed
    assert reports.reports(0)


@pytest.mark.parametrize(
    "report", [LastLine(generation=NUMBER, rank=0), make_busy(lasting=False)], ids=lambda r: r.kind
)
def test_other_reports_are_passed_on(report: LastLine | Busy) -> None:
    assert ScriptReports(0.0).on_report(report, 1.0) == (report,)
