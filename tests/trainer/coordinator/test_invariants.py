"""Properties of the coordinator that hold for any faults in any order; hypothesis searches."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from regroup_trainer.coordinator.coordinator_status import make_status
from regroup_trainer.coordinator.formation import least_workers
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.rank_messages import Progress
from tests.support.coordinator_simulation import Job, SimulatedAgent, make_desired

WORKERS = 4
SPARES = 2
HANGS = {"max_hang_restarts": -1, "progress_timeout_seconds": 5}
MISFORTUNES = ["crash", "silence", "disconnect", "ask_to_leave", "fail_rank", "hang"]


class Faults(RuleBasedStateMachine):
    """Faults, requests to leave, scaling and coordinator restarts, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.job = Job(
            make_desired(
                replicas=3, steps=10_000, max_restarts=-1, max_backoff_seconds=2.0, **HANGS
            )
        )
        self.seen: list[GenerationNumber] = []
        for index in range(3):
            self.job.add_agent(index)

    def pick(self, choice: int) -> SimulatedAgent | None:
        alive = [agent for agent in self.job.agents.values() if agent.alive and agent.reachable]
        return alive[choice % len(alive)] if alive else None

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 2.5, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.job.wait(seconds)

    @rule(choice=st.integers(0, 9), how=st.sampled_from(MISFORTUNES))
    def something_happens_to_a_worker(self, choice: int, how: str) -> None:
        agent = self.pick(choice)
        if agent is not None:
            getattr(self.job, how)(agent)

    @rule(index=st.integers(0, WORKERS + SPARES - 1))
    def a_replacement_comes(self, index: int) -> None:
        for agent in self.job.agents.values():
            if agent.index == index and agent.alive and agent.reachable:
                return
        self.job.add_agent(index)

    @rule(choice=st.integers(0, 9))
    def a_silent_worker_returns(self, choice: int) -> None:
        silent = [
            agent for agent in self.job.agents.values() if agent.alive and not agent.reachable
        ]
        if silent:
            silent[choice % len(silent)].reachable = True

    @rule(replicas=st.integers(1, WORKERS))
    def the_job_is_scaled(self, replicas: int) -> None:
        self.job.update_desired(replicas=replicas, min_replicas=min(2, replicas))

    @rule(spares=st.integers(0, SPARES))
    def spares_are_wanted(self, spares: int) -> None:
        self.job.update_desired(spares=spares)

    @rule(next_term=st.booleans())
    def the_coordinator_is_replaced(self, next_term: bool) -> None:
        self.job.start_coordinator(self.job.term + int(next_term))

    @rule(seconds=st.sampled_from([0.6, 5.0]))
    def the_coordinator_is_paused(self, seconds: float) -> None:
        self.job.pause_coordinator(seconds)

    @rule(choice=st.integers(0, 9), step=st.integers(0, 10**6))
    @precondition(lambda self: self.job.core.state.current is not None)
    def a_fenced_member_reports(self, choice: int, step: int) -> None:
        outsiders = [
            agent
            for agent in self.job.agents.values()
            if agent.name not in self.job.core.state.members
        ]
        if not outsiders:
            return
        agent = outsiders[choice % len(outsiders)]
        before = self.snapshot()
        number = self.job.record.number
        report = Progress(generation=number, rank=0, step=step, time=self.job.now)
        assert not [
            e
            for e in self.job.core.on_message(report, agent.name, self.job.now)
            if getattr(e, "member", "") == agent.name
        ]
        if self.job.record.number == number:
            assert self.snapshot() == before

    def snapshot(self) -> Any:
        state = self.job.core.state
        lost_steps = state.account.ledger().lost_steps
        return state.committed, state.progress, state.checkpoint, lost_steps, set(state.members)

    @invariant()
    def numbers_are_used_once_and_rise(self) -> None:
        # `Job._deliver` asserts that one number never names two generations.
        current = self.job.core.state.current
        if current is not None and (not self.seen or self.seen[-1] != current.number):
            newer = [number for number in self.seen if number > current.number]
            assert not newer or self.job.term > current.number.term or current.number in self.seen
            self.seen.append(current.number)

    @invariant()
    def generations_have_an_allowed_size_and_distinct_members(self) -> None:
        for record in self.job.begun.values():
            assert (
                least_workers(record.desired) <= len(record.members) <= record.desired.max_replicas
            )
            assert len({place.index for place in record.members}) == len(record.members)
            assert [place.first_rank for place in record.members] == list(
                range(len(record.members))
            )

    @invariant()
    def every_begun_number_was_reserved(self) -> None:
        assert set(self.job.begun) <= self.job.reserved

    @invariant()
    def a_job_says_why_it_does_not_train(self) -> None:
        state = self.job.core.state
        current = state.current
        trains = current is not None and current.alive and current.running
        if state.outcome is None:
            assert (state.waiting is None) == trains
            assert state.waiting is None or make_status(state, 1).message == state.waiting.message

    def teardown(self) -> None:
        """Once faults stop and the wanted workers are there, steps are committed."""
        job = self.job
        if job.outcome is not None:
            return
        for agent in job.agents.values():
            agent.reachable, agent.stuck_in = True, None
        job.wait(5.0)
        for index in range(job.desired.workers):
            if not any(a.index == index and a.alive for a in job.agents.values()):
                job.add_agent(index)
        job.wait(70.0)
        at = job.step
        job.wait(5.0)
        assert job.step > at, job.core.state.waiting
        assert len(job.record.members) == min(job.desired.replicas, job.desired.max_replicas)


Faults.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestFaults = Faults.TestCase
