"""Programs without a Session that report their steps, in virtual time."""

from __future__ import annotations

import pytest

from regroup_trainer.agent.script_progress import ScriptReports
from regroup_trainer.coordinator import hangs
from regroup_trainer.coordinator.coordinator_status import make_status
from regroup_trainer.coordinator.generation_end import ABORT_SECONDS, SAVE_SECONDS
from regroup_trainer.coordinator.hangs import FIRST_STEP_SECONDS
from regroup_trainer.coordinator.transitions import AGREE_SECONDS
from regroup_trainer.protocol.agent_messages import RankExit
from regroup_trainer.protocol.coordinator_messages import LeaveGeneration
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.protocol.rank_messages import (
    Busy,
    Finished,
    RankReport,
    Restored,
    ScriptStep,
)
from tests.support.coordinator_simulation import Job, SimulatedAgent, make_desired


class Script:
    """A job of two workers whose ranks run a script."""

    def __init__(self, **desired: object) -> None:
        fields = {"script": ("train.py",), "replicas": 2, "backoff_seconds": 0.0, **desired}
        self.job = Job(make_desired(**fields), is_unmanaged=True)
        self.agents = [self.job.add_agent(index) for index in range(2)]
        self.job.wait(0.5)
        self.begin()

    def begin(self) -> None:
        """A new generation runs."""
        self.number = self.job.record.number
        self.reports = [ScriptReports(self.job.now) for _ in self.agents]

    def step(self, step: int, rank: int = 0, **fields: object) -> None:
        """A rank reports a step."""
        base = {"generation": self.number, "rank": rank, "has_loss": False}
        time = 1_000_000.0 + self.job.now
        self._send(ScriptStep.model_validate({**base, "step": step, "time": time, **fields}))

    def busy(self, doing: str, rank: int = 0) -> None:
        """A rank does something else."""
        self._send(Busy(generation=self.number, rank=rank, doing=doing, step=0, lasting=True))

    def fail(self, exit_code: int = 1) -> None:
        """Both ranks end with the same error, and the next generation begins if it may."""
        for agent in self.agents:
            agent.ranks_run = False
        for rank in range(2):
            fields = {"generation": self.number, "rank": rank, "exit_code": exit_code}
            fields |= {"cause": "error", "message": "E: x"}
            self.job.send(self.of(rank), RankExit.model_validate(fields))
        self.job.wait(3.0)
        if self.job.outcome is None:
            self.begin()

    def change_coordinator(self, *, knows_status: bool = True) -> None:
        """A new one starts, and gets what its predecessor reported last."""
        known = {"failed_starts": self.status.failed_starts if knows_status else None}
        self.job.desired = self.job.desired.model_copy(update=known)
        self.job.start_coordinator(self.job.term + 1)
        self.job.wait(3.0)
        self.begin()

    def of(self, rank: int) -> SimulatedAgent:
        """The worker of a rank."""
        place = self.job.record.place_of_rank(rank)
        assert place is not None
        return self.job.agents[place.member]

    @property
    def status(self) -> CoordinatorStatus:
        return make_status(self.job.core.state, 1)

    def events(self, reason: str) -> list[str]:
        """The messages of the events with this reason."""
        events = self.job.core.state.journal.events()
        return [event.message for event in events if event.reason == reason]

    def _send(self, report: RankReport) -> None:
        for passed_on in self.reports[report.rank].on_report(report, self.job.now):
            self.job.send(self.of(report.rank), passed_on)


def test_its_steps_are_those_of_rank_0() -> None:
    script = Script()
    assert script.status.message == "running train.py on 2 workers"
    script.step(7, rank=1)
    script.step(5, total=100, loss=2.5, has_loss=True)
    status = script.status
    assert status.phase == "running"
    assert status.message == "running train.py: step 5 of 100 on 2 workers"
    assert status.progress is not None
    assert (status.progress.step, status.progress.loss, status.total_steps) == (5, 2.5, 100)


def test_the_number_of_steps_may_be_reported_late_and_may_change() -> None:
    script = Script()
    for total in (0, 100, 120):
        script.step(5, total=total)
        assert script.status.total_steps == total


def test_it_is_not_watched_before_its_first_report() -> None:
    script = Script(progress_timeout_seconds=5)
    script.job.wait(FIRST_STEP_SECONDS + 100.0)
    assert script.job.record.number == script.number


def test_a_script_that_reports_no_more_hangs() -> None:
    script = Script(progress_timeout_seconds=5)
    script.step(1)
    script.job.wait(4.0)
    assert script.job.record.number == script.number
    script.job.wait(8.0)
    assert script.job.record.number > script.number
    assert script.job.core.state.recoveries.records()[-1].cause == "hang"


@pytest.mark.parametrize("rank", [0, 1])
def test_each_report_of_each_rank_is_a_sign_of_life(rank: int) -> None:
    script = Script(progress_timeout_seconds=5)
    for _ in range(5):
        script.job.wait(4.0)
        script.step(1, rank)  # of a second epoch, or again
    assert script.job.record.number == script.number


def test_without_a_timeout_a_script_may_report_nothing_for_ten_minutes() -> None:
    script = Script()
    for step in range(1, 4):
        script.step(step)
        script.job.wait(1.0)
    script.job.wait(FIRST_STEP_SECONDS - 10.0)
    assert script.job.record.number == script.number
    script.job.wait(20.0)
    assert script.job.record.number > script.number


def test_a_script_that_reports_seldom_may_report_nothing_for_longer() -> None:
    script = Script()
    for epoch in range(1, 4):
        script.job.wait(200.0)
        script.step(epoch)
    script.job.wait(1900.0)
    assert script.job.record.number == script.number
    script.job.wait(200.0)
    assert script.job.record.number > script.number


def test_a_busy_script_is_not_watched_until_the_next_step_of_that_rank() -> None:
    script = Script(progress_timeout_seconds=5)
    script.step(3)
    script.busy("evaluation")
    script.step(3, rank=1)
    script.job.wait(60.0)
    assert script.job.record.number == script.number
    assert script.status.message.endswith(
        "; rank 0 is busy (evaluation) since step 3: hangs are not watched"
    )
    script.step(4)
    assert "busy" not in script.status.message
    script.job.wait(8.0)
    assert script.job.record.number > script.number


def test_who_is_busy_for_long_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "LONG_BUSY_SECONDS", 120.0)  # virtual time is quick, not free
    script = Script()
    script.busy("evaluation")
    script.job.wait(110.0)
    assert script.events("BusyForLong") == []
    script.job.wait(200.0)
    (event,) = script.events("BusyForLong")
    assert event.startswith(
        "rank 0 on gpt-w0-1 (node node-0) has been busy (evaluation) for 2 minutes"
    )
    assert script.job.record.number == script.number


@pytest.mark.parametrize("is_new", [True, False], ids=["a new coordinator", "a new connection"])
def test_a_coordinator_learns_again_who_is_busy(is_new: bool) -> None:
    script = Script(progress_timeout_seconds=5)
    script.step(3)
    script.busy("evaluation")
    if is_new:
        script.job.start_coordinator(term=2)
    else:
        script.job.disconnect(script.of(0))
    script.job.wait(60.0)
    assert script.job.record.number == script.number
    assert "rank 0 is busy (evaluation)" in script.status.message
    assert script.job.core.state.resumed == []


def test_a_new_coordinator_knows_how_seldom_a_script_reports() -> None:
    script = Script()
    for epoch in range(1, 3):
        script.job.wait(100.0)
        script.step(epoch)
    script.job.start_coordinator(term=2)
    script.job.wait(FIRST_STEP_SECONDS + 200.0)
    assert script.job.record.number == script.number


def test_the_steps_that_a_failure_costs_are_counted() -> None:
    script = Script()
    for step in range(1, 101):
        script.step(step)
    script.fail()
    script.step(81)
    recovery = script.job.core.state.recoveries.records()[-1]
    assert (recovery.lost_steps, recovery.resumed_from_step) == (20, 80)
    assert recovery.restored_from == "Script"
    assert script.status.ledger.lost_steps == 20
    assert script.events("Recovered")[0].startswith(
        "training goes on: 2 -> 2 ranks, resumed from step 80 of the script's own files"
    )


def test_a_script_that_goes_on_exactly_where_it_was_loses_nothing() -> None:
    script = Script()
    script.step(100)
    script.fail()
    script.step(104, rank=1)  # rank 0 has not reported yet
    script.step(105)  # it reports every fifth step
    assert script.status.ledger.lost_steps == 0
    assert len(script.events("Recovered")) == 1


def test_steps_that_a_script_repeats_by_itself_are_no_failure() -> None:
    script = Script()
    for step in (100, 50, 60):
        script.step(step)
    assert script.status.progress is not None
    assert script.status.progress.step == 60
    script.fail()
    script.step(51)
    assert script.status.ledger.lost_steps == 10


def test_a_script_that_has_reported_a_step_can_start() -> None:
    script = Script(max_restarts=-1)
    script.step(1, rank=1)
    for _ in range(4):
        script.fail()
    assert script.job.outcome is None


def test_a_script_that_never_reported_cannot_start() -> None:
    script = Script(max_restarts=-1)
    for _ in range(3):
        assert script.job.outcome is None
        script.fail()
    assert script.job.outcome is not None
    assert script.job.outcome.reason == "FailsAtStart"


@pytest.mark.parametrize("before", range(3))
def test_a_new_coordinator_goes_on_counting_the_tries(before: int) -> None:
    script = Script(max_restarts=-1)
    for _ in range(before):
        script.fail()
    script.change_coordinator()
    script.change_coordinator()
    for _ in range(before, 3):
        assert script.job.outcome is None
        script.fail()
    assert script.job.outcome is not None
    assert script.job.outcome.reason == "FailsAtStart"


@pytest.mark.parametrize("evidence", ["a minute", "a minute under two", "a step", "unknown"])
def test_after_a_change_of_the_coordinator_a_script_that_has_lived_can_start(evidence: str) -> None:
    script = Script(max_restarts=-1)
    if evidence == "a step":
        script.step(1)
    script.job.wait({"a minute": 61.0, "a minute under two": 31.0}.get(evidence, 1.0))
    script.change_coordinator(knows_status=evidence != "unknown")
    script.job.wait(31.0 if evidence == "a minute under two" else 0.1)
    for _ in range(4):
        script.fail()
    assert script.job.outcome is None


@pytest.mark.parametrize(("max_restarts", "tries"), [(0, 1), (1, 2), (5, 3)])
def test_a_smaller_max_restarts_wins_over_three_tries(max_restarts: int, tries: int) -> None:
    script = Script(max_restarts=max_restarts)
    for _ in range(tries):
        assert script.job.outcome is None
        script.fail()
    assert script.job.outcome is not None
    by_budget = f"the budget of {max_restarts} restarts is used up" in script.job.outcome.message
    assert by_budget == (script.job.outcome.reason == "") == (tries < 3)


@pytest.mark.parametrize(
    ("steps", "code", "reason"), [(0, 2, "FailsAtStart"), (0, 127, "FailsAtStart"), (1, 127, "")]
)
def test_an_error_that_would_come_again_fails_at_start_before_the_first_step(
    steps: int, code: int, reason: str
) -> None:
    script = Script()
    for step in range(1, steps + 1):
        script.step(step)
    script.fail(exit_code=code)
    assert script.job.outcome is not None
    assert (script.job.outcome.result, script.job.outcome.reason) == ("failed", reason)


def test_an_error_of_usage_after_the_first_step_keeps_its_budget() -> None:
    script = Script()
    script.step(1)
    script.fail(exit_code=2)
    assert script.job.outcome is None


def test_it_receives_no_decision_and_is_ended_by_a_signal() -> None:
    script = Script(min_replicas=1)
    for step in range(1, 6):
        script.step(step)
        script.job.wait(0.2)
    script.job.update_desired(replicas=1)
    for step in range(6, 30):  # it goes on reporting
        if script.job.record.number == script.number:
            script.step(step)
            script.job.wait(0.2)
    assert len(script.job.record.members) == 1
    assert script.job.core.state.account.ledger().restarts == {"resize": 1}


def test_a_save_gets_time_when_a_peer_is_lost_but_a_planned_end_comes_at_once() -> None:
    """A program that computes writes its log all the time, which looks like a save."""
    suspended, bereft = Script(), Script()
    orders = []
    for script in (suspended, bereft):
        script.agents[0].reachable = False  # what is sent to it can be read below
        if script is suspended:
            script.job.update_desired(suspend=True)
        else:
            script.job.crash(script.agents[1])
        script.job.wait(2)
        leave = [m for m in script.agents[0].undelivered if isinstance(m, LeaveGeneration)]
        orders += [(order.seconds, order.save_seconds) for order in leave]
    assert orders == [(AGREE_SECONDS, 0.0), (ABORT_SECONDS, SAVE_SECONDS)]


def test_its_end_names_the_last_step() -> None:
    script = Script()
    script.step(30, total=30)
    for rank in range(2):
        end = Finished(generation=script.number, rank=rank, step=0, reason="completed")
        script.job.send(script.of(rank), end)
    assert script.job.outcome is not None
    assert script.job.outcome.message == "the program ended well on 2 ranks, after step 30"


def test_a_session_after_such_steps_counts_no_step_twice() -> None:
    script = Script()
    script.step(100)
    script.fail()
    script.step(81)
    restored = Restored(generation=script.number, rank=0, step=80, restored_from="Checkpoint")
    script.job.send(script.of(0), restored)
    assert script.status.ledger.lost_steps == 20
    assert script.job.core.state.resumed == [(script.number, 80)]
