"""Generations that live but do nothing, in virtual time; and the culprit, from real stacks."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest

from regroup_trainer.coordinator.coordinator_status import make_status
from regroup_trainer.coordinator.generation_end import ABORT_SECONDS
from regroup_trainer.coordinator.hangs import (
    LEAST_SECONDS,
    STALL_SECONDS,
    STALL_STEPS,
    Culprit,
    culprit,
    may_start_slowly,
)
from regroup_trainer.protocol.agent_messages import Stack, StackFrame
from regroup_trainer.protocol.config import TrainConfig, TrainingConfig
from regroup_trainer.protocol.generation import GenerationNumber, RestoredFrom
from regroup_trainer.protocol.job_status import Stall
from regroup_trainer.protocol.rank_messages import Busy
from tests.support.coordinator_simulation import Job, SimulatedAgent, make_desired
from tests.support.large_job import Event, LargeJob, uid

STACK_BYTES = 16_000
"""The longest answer of a rank."""
KEPT_BYTES = 1_000
"""Of an answer, at most."""

WAITS = """Thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x2 (most recent call first):
  File "/site/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/site/regroup_trainer/step.py", line 150 in exchange
"""
READS = """Current thread 0x2 (most recent call first):
  File "/app/train.py", line 12 in read_from_dead_mount
  File "/site/regroup_trainer/loop.py", line 80 in run
"""
SYNCHRONISES = """Thread 0x2 (most recent call first):
  File "/site/regroup_trainer/step.py", line 99 in run
"""


def stacks(*texts: str) -> dict[int, StackFrame | None]:
    """Where ranks 0, 1, ... are by their stacks."""
    return {
        rank: Stack(generation=GenerationNumber(1, 1), rank=rank, text=text).innermost()
        for rank, text in enumerate(texts)
    }


def test_the_culprit_is_outside_torch_while_the_others_wait_in_it() -> None:
    assert culprit(stacks(WAITS, READS, WAITS), 3) == Culprit(
        1, "is in read_from_dead_mount (/app/train.py:12)"
    )


def test_the_culprit_does_not_answer() -> None:
    stopped = Culprit(2, "does not answer (is its process stopped, or its node frozen?)")
    assert culprit(stacks(WAITS, WAITS, ""), 3) == stopped
    assert culprit(stacks(READS, WAITS), 3) == stopped


def test_where_all_wait_for_their_devices_the_odd_one_is_the_culprit() -> None:
    assert culprit(stacks(SYNCHRONISES, READS, SYNCHRONISES), 3) == Culprit(
        1, "is in read_from_dead_mount (/app/train.py:12)"
    )
    assert culprit(stacks(SYNCHRONISES, READS), 2) is None


def test_nobody_stands_out_when_all_wait_alike() -> None:
    assert culprit(stacks(WAITS, WAITS), 2) is None
    assert culprit(stacks(SYNCHRONISES, SYNCHRONISES), 2) is None
    assert culprit({}, 3) is None


def test_a_rank_alone_is_its_own_culprit() -> None:
    assert culprit(stacks(READS), 1) == Culprit(0, "is in read_from_dead_mount (/app/train.py:12)")


def train(**desired: object) -> tuple[Job, list[SimulatedAgent]]:
    """Three workers that have trained for two seconds."""
    job = Job(make_desired(steps=10_000, progress_timeout_seconds=5, **desired))
    agents = [job.add_agent(index) for index in range(3)]
    job.wait(2.0)
    return job, agents


def test_a_hung_generation_is_diagnosed_and_replaced() -> None:
    job, agents = train()
    before, number = job.step, job.record.number
    agents[1].stuck_in = READS
    job.wait(4.0)
    assert job.record.number == number
    job.wait(3.0)
    assert job.record.number > number
    assert "read_from_dead_mount" in job.record.reason
    recovery = job.core.state.recoveries.records()[-1]
    assert (recovery.cause, recovery.pod) == ("hang", agents[1].state.hello().pod)
    assert recovery.detect_seconds == pytest.approx(5.0, abs=0.3)
    job.wait(5.0)
    assert job.step > before


def stall(job: Job) -> Stall | None:
    """What the coordinator reports."""
    return make_status(job.core.state, 1).stall


def test_a_generation_that_stands_still_is_reported_long_before_its_end() -> None:
    job, agents = train()
    job.update_desired(progress_timeout_seconds=600)
    agents[1].stuck_in = READS
    job.wait(STALL_SECONDS - 3)
    assert stall(job) is None
    step, news = job.step, make_status(job.core.state, 1).essence()
    job.wait(6)
    found = stall(job)
    assert found is not None
    assert (found.step, found.limit_seconds) == (step, 600.0)
    assert job.core.state.wall(job.now) - found.since == pytest.approx(STALL_SECONDS + 3, abs=2)
    assert make_status(job.core.state, 1).essence() != news
    agents[1].stuck_in = None
    job.wait(5)
    assert job.step > step
    assert stall(job) is None


def test_a_generation_whose_steps_take_long_is_given_five_of_them() -> None:
    job = Job(make_desired(steps=10_000, progress_timeout_seconds=3600), step_seconds=20.0)
    agents = [job.add_agent(index) for index in range(3)]
    job.wait(50.0)
    agents[1].stuck_in = READS
    job.wait(STALL_STEPS * 20.0 - 20)
    assert stall(job) is None
    job.wait(40)
    assert stall(job) is not None


def test_a_deadline_that_passes_between_two_reports_is_longer() -> None:
    """An agent says once a second how far its ranks are, and a step of them may come just after."""
    job = Job(make_desired(steps=10_000, progress_timeout_seconds=1), step_seconds=1.5)
    agents = [job.add_agent(index) for index in range(3)]
    job.wait(10.0)
    assert "HangDetected" not in {event.reason for event in job.core.state.journal.events()}
    agents[1].stuck_in = READS
    job.wait(3.0)
    assert "HangDetected" in {event.reason for event in job.core.state.journal.events()}


def test_a_rank_on_an_overloaded_machine_gets_longer_for_its_step() -> None:
    job, agents = train()
    agents[2].heartbeat_delay = 0.5  # four times that is allowed
    job.wait(1.0)
    agents[1].stuck_in = READS
    job.wait(6.0)
    assert "HangDetected" not in {event.reason for event in job.core.state.journal.events()}
    job.wait(2.0)
    assert "HangDetected" in {event.reason for event in job.core.state.journal.events()}


def test_nobody_waits_for_the_rank_that_hangs() -> None:
    job, agents = train()
    agents[1].stuck_in = READS
    job.wait(6.0)
    events = {event.reason: event.time for event in job.core.state.journal.events()}
    assert 0 < events["GenerationFormed"] - events["HangDiagnosed"] < ABORT_SECONDS / 2
    messages = {event.reason: event.message for event in job.core.state.journal.events()}
    assert "has reported progress for 5 s after step" in messages["HangDetected"]
    assert messages["HangDiagnosed"] == (
        "no progress for 5 s: rank 1 on gpt-w1-2 (node node-1) is in read_from_dead_mount "
        "(/app/train.py:12)"
    )


def test_a_member_that_cannot_answer_delays_the_next_generation_only_for_a_moment() -> None:
    job, agents = train()
    number = job.record.number
    agents[1].stuck_in = ""
    agents[1].answers = False
    job.wait(8.0)
    assert job.record.number > number
    assert "does not answer" in job.record.reason


def kept_bytes(events: Sequence[Event]) -> int:
    """What stays in memory of these events."""
    tracemalloc.start()
    try:
        for event in events:
            event()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_the_stacks_of_a_large_job_take_little_memory_and_show_the_culprit() -> None:
    job = trained_job()
    job.now += LEAST_SECONDS + 1.0
    for number in range(job.workers):
        job.core.on_heartbeat(uid(number), job.now)
    job.tick()
    current = job.core.state.current
    assert current is not None
    assert current.diagnosed_at is not None
    answers = job.stacks(lambda rank: long(READS if rank == 1000 else WAITS))
    assert kept_bytes(answers) < KEPT_BYTES * len(answers)
    assert current.failure is not None
    assert current.failure.message == (
        "no progress for 61 s: rank 1000 on gpt-w125-1 (node node-125) is in "
        "read_from_dead_mount (/app/train.py:12)"
    )


def test_stacks_that_nobody_waits_for_take_no_memory() -> None:
    """Their work goes on, or a former coordinator has asked for them."""
    job = trained_job()
    record = job.record
    answers = job.stacks(lambda _rank: long(WAITS))
    assert kept_bytes(answers) < KEPT_BYTES * len(answers)
    job.start_coordinator(2)
    for number in range(job.workers - 2):
        job.hello(number, record)
    assert kept_bytes(answers[: -2 * job.ranks]) < KEPT_BYTES * len(answers)
    assert job.core.state.current is None


def trained_job() -> LargeJob:
    """1,024 ranks have made a step."""
    job = LargeJob(128, 8)
    for number in range(job.workers):
        job.hello(number)
    job.train()
    return job


def long(text: str) -> str:
    """As long as an agent's answer can be."""
    return text + "  and more\n" * ((STACK_BYTES - len(text)) // 11)


def test_hangs_have_a_budget_of_their_own() -> None:
    job, agents = train(max_hang_restarts=1)
    for _ in range(2):
        agents[1].stuck_in = READS
        job.wait(8.0)
    assert job.outcome is not None
    assert job.outcome.result == "failed"
    assert "the budget of 1 restarts after hangs is used up" in job.outcome.message


def test_slow_steps_are_no_hang() -> None:
    job, _ = train()
    number = job.record.number
    job.wait(60.0)
    assert job.record.number == number
    assert not [
        event for event in job.core.state.journal.events() if event.reason == "HangDetected"
    ]


def test_without_a_timeout_the_deadline_follows_from_the_steps() -> None:
    job = Job(make_desired(steps=10_000))
    agents = [job.add_agent(index) for index in range(3)]
    job.wait(2.0)
    number = job.record.number
    agents[1].stuck_in = READS
    job.wait(58.0)
    assert job.record.number == number
    job.wait(6.0)
    assert job.record.number > number


def test_waiting_for_a_save_is_no_hang() -> None:
    job, agents = train()
    number = job.record.number
    agents[1].stuck_in = READS
    for _ in range(5):
        job.wait(4.0)
        job.send(
            agents[0],
            Busy(
                generation=number,
                rank=agents[0].state.local_ranks()[0],
                doing="save",
                step=job.step,
            ),
        )
    assert job.record.number == number


def train_on_two(**desired: object) -> tuple[Job, list[SimulatedAgent]]:
    """A job of two workers that can go on with one."""
    fields = {"steps": 10_000, "replicas": 2, "min_replicas": 1, "progress_timeout_seconds": 5}
    job = Job(make_desired(**{**fields, **desired}))
    agents = [job.add_agent(index) for index in range(2)]
    job.wait(2.0)
    return job, agents


COMPILES = TrainConfig(training=TrainingConfig(steps=10_000, compile=True))


@pytest.mark.parametrize("desired", [{}, {"train": COMPILES}, {"script": ("train.py",)}])
def test_a_hang_of_a_single_survivor_before_its_first_step_is_found_soon(
    desired: dict[str, object],
) -> None:
    job, agents = train_on_two(**desired)
    agents[0].hangs_at_start = True
    job.crash(agents[1])
    job.wait(1.0)
    assert (job.record.restored_from, job.record.world_size) == ("Peers", 1)
    number = job.record.number
    job.wait(7.0)
    assert "HangDiagnosed" in {event.reason for event in job.core.state.journal.events()}
    job.wait(15.0)  # it has time to leave with the only copy of the state
    assert job.record.number > number
    assert job.core.state.account.used("hang") == 1


def hang_beside_a_joiner() -> tuple[Job, SimulatedAgent]:
    """A survivor hangs before its state is in place, and a joiner comes: the joiner is returned."""
    job, agents = train_on_two()
    job.crash(agents[1])
    job.wait(1.0)
    agents[0].hangs_at_start = True
    joiner = job.add_agent(1)
    job.wait(1.0)
    assert (job.record.restored_from, job.record.world_size) == ("Peers", 2)
    return job, joiner


def test_a_hang_of_a_survivor_is_found_soon_while_a_joiner_waits_for_it() -> None:
    job, _ = hang_beside_a_joiner()
    number = job.record.number
    job.wait(12.0)
    assert job.record.number > number


def test_a_joiner_that_reports_that_it_compiles_has_the_time_that_it_takes() -> None:
    job, joiner = hang_beside_a_joiner()
    number = job.record.number
    for _ in range(300):
        job.send(joiner, Busy(generation=number, rank=1, doing="compiling", step=0))
        job.wait(1.0)
    assert job.record.number == number
    job.wait(12.0)
    assert job.record.number > number


@pytest.mark.parametrize(
    ("planned", "reported", "slow"),
    [
        ("Peers", [], False),
        ("Peers", ["Peers"], False),
        ("Peers", ["Peers", None], False),
        ("Peers", ["Peers", "Checkpoint"], True),
        ("Snapshot", [], True),
        ("Checkpoint", ["Checkpoint"], True),
        ("Nothing", [], True),
        ("Script", ["Script"], True),
    ],
)
def test_only_ranks_that_do_not_go_on_with_a_live_state_start_slowly_without_a_word(
    planned: RestoredFrom, reported: list[RestoredFrom | None], slow: bool
) -> None:
    assert may_start_slowly(planned, reported) == slow
