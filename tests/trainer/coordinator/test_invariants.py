"""Properties of the coordinator that hold for any faults in any order; hypothesis searches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.coordinator_status import essence_of, make_status
from regroup_trainer.coordinator.current_generation import CurrentGeneration
from regroup_trainer.coordinator.formation import choose, least_workers
from regroup_trainer.coordinator.generation_end import leaving_holders, rank_not_out
from regroup_trainer.coordinator.membership import LEAST_DELAY, Member, expired
from regroup_trainer.coordinator.snapshot_registry import is_reading, newest_usable
from regroup_trainer.protocol import record_transfer
from regroup_trainer.protocol.agent_messages import HeldSnapshot, HeldSnapshots, Hello
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.generation import GenerationNumber, SnapshotNumber
from regroup_trainer.protocol.rank_messages import Progress
from tests.support.coordinator_simulation import (
    Job,
    SimulatedAgent,
    make_desired,
    make_sharded_config,
)
from tests.support.generations import make_saved
from tests.support.record_wire import WireJob

STEP_SECONDS_OF_MANY = 1.0
WORKERS = 4
SPARES = 2
HANGS = {"max_hang_restarts": -1, "progress_timeout_seconds": 5}
SHARDS = [(), (0,), (1, 2), (0, 1, 2)]
MISFORTUNES = ["crash", "cut_off", "disconnect", "ask_to_leave", "fail_rank", "hang"]


def shards_of(members: Iterable[Member], number: SnapshotNumber | None) -> set[int]:
    """What they hold of a snapshot."""
    held = [held for member in members for held in member.snapshots if held.number == number]
    return {shard for one in held for shard in one.shards}


def who_leaves_is_needed(state: State, current: CurrentGeneration) -> None:
    """Nobody is kept who is to go, by a look at all members."""
    needed = current.alive or rank_not_out(state, current) is not None
    surplus = [one for one in state.members.values() if one.hello.index >= state.desired.workers]
    to_go = [*state.members.leaving.values(), *(surplus if needed else ())]
    kept = [one for one in to_go if not needed or current.place_of(one.name) is None]
    if current.alive:
        assert not kept or is_reading(current)
        return
    staying = [one for one in state.members.values() if one.leaving is None]
    newest = None if current.ended else newest_usable(state)
    for member in kept:
        is_source = shards_of([member], newest) - shards_of(staying, newest)
        assert is_source or member.name in leaving_holders(state)


def hold(job: Job, agent: SimulatedAgent, number: SnapshotNumber, shards: tuple[int, ...]) -> None:
    """The agent holds this of a snapshot from now on, and nothing else."""
    agent.state.snapshots = (HeldSnapshot(number=number, shards=shards),)
    job.send(agent, HeldSnapshots(snapshots=agent.state.snapshots))


class Faults(RuleBasedStateMachine):
    """Faults, requests to leave, scaling and coordinator restarts, in any order."""

    times = 1
    """Workers that stand where one is named."""

    def __init__(self) -> None:
        super().__init__()
        self.job = Job(self.desired())
        self.seen: list[GenerationNumber] = []
        self.shown: tuple[object, object] | None = None
        for index in range(3 * self.times):
            self.job.add_agent(index)

    def desired(self) -> Desired:
        sizes = {"replicas": 3 * self.times, "max_replicas": WORKERS * self.times}
        limits = {"steps": 10_000, "max_restarts": -1, "max_backoff_seconds": 2.0, **HANGS}
        return make_desired(**sizes, **limits)

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
        agents = self.job.agents.values()
        here = {agent.index for agent in agents if agent.is_here and agent.reachable}
        for one in range(index * self.times, (index + 1) * self.times):
            if one not in here:
                self.job.add_agent(one)

    @rule(choice=st.integers(0, 9))
    def an_unresponsive_worker_returns(self, choice: int) -> None:
        cut_off = [
            agent for agent in self.job.agents.values() if agent.alive and not agent.reachable
        ]
        if cut_off:
            cut_off[choice % len(cut_off)].reachable = True

    @rule(replicas=st.integers(1, WORKERS))
    def the_job_is_scaled(self, replicas: int) -> None:
        self.job.update_desired(
            replicas=replicas * self.times, min_replicas=min(2, replicas * self.times)
        )

    @rule(spares=st.integers(0, SPARES))
    def spares_are_wanted(self, spares: int) -> None:
        self.job.update_desired(spares=spares)

    @rule(choice=st.integers(0, 9), step=st.integers(1, 20), shards=st.sampled_from(SHARDS))
    def a_worker_holds_a_part_of_a_snapshot(
        self, choice: int, step: int, shards: tuple[int, ...]
    ) -> None:
        agent = self.pick(choice)
        if agent is not None and agent.state.record is not None:
            hold(self.job, agent, SnapshotNumber(step, agent.state.record.number, 3), shards)

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

    @invariant()
    def a_watch_learns_of_all_news(self) -> None:
        state = self.job.core.state
        cheap, whole = essence_of(state, self.job.now), make_status(state, 1).essence()
        if self.shown is not None and self.shown[0] == cheap:
            assert self.shown[1] == whole
        self.shown = cheap, whole

    @invariant()
    def what_is_kept_beside_the_members_is_what_they_show(self) -> None:
        state, now = self.job.core.state, self.job.now
        members, all_members = state.members, [*state.members.values()]
        staying = [member for member in all_members if member.leaving is None]
        assert members.staying == {member.hello.index: member for member in staying}
        assert {*members.leaving} == {one.name for one in all_members if one.leaving is not None}
        assert {*members.closed} == {one.name for one in all_members if one.closed_at is not None}
        assert {*members.overloaded} == {m.name for m in all_members if m.delay > LEAST_DELAY}
        workers = state.desired.workers
        assert members.fitting(workers) == sum(one.hello.index < workers for one in staying)
        suspects = [one for one in all_members if one.is_suspect(state.desired, now)]
        first = members.first_suspect(state.desired, now)
        assert first in suspects if suspects else first is None
        late, found = expired(all_members, state.desired, now), members.expired(state.desired, now)
        assert {one.name for one in late} == {one.name for one in found}

    @invariant()
    def nothing_is_left_undone_that_the_members_call_for(self) -> None:
        """What is decided only upon a change is decided."""
        state = self.job.core.state
        current = state.current
        if state.outcome is not None or current is None:
            return
        here = {place.member for place in current.record.members}
        if current.alive and current.running and current.decision is None:
            assert not [name for name in here if not state.members.stays(name)]
            others = [m for m in state.members.values() if m.name in here or m.closed_at is None]
            hellos = [member.hello for member in others if member.leaving is None]
            chosen = choose(hellos, current.record, state.desired, state.node)
            assert not chosen or {hello.member for hello in chosen} == here
        who_leaves_is_needed(state, current)

    @invariant()
    def the_rank_that_is_waited_for_has_not_left(self) -> None:
        state = self.job.core.state
        current = state.current
        if current is None:
            self.the_former_generation_is_the_newest_that_members_report()
            return
        out = {*current.retained, *current.exits, *current.finished}
        places = [place for place in current.record.members if place.member in state.members]
        inside = [rank for place in places for rank in place.own_ranks if rank not in out]
        assert current.rank_inside(state.members) == (inside[0] if inside else None)
        for place in current.record.members:
            assert current.place_of(place.member) == place
            assert {current.place_of_rank(rank) for rank in place.own_ranks} == {place}
        assert current.place_of_rank(current.world_size) is None
        assert current.place_of_rank(-1) is None

    def the_former_generation_is_the_newest_that_members_report(self) -> None:
        former, hellos = self.job.core.state.former, self.hellos()
        numbers = [hello.record.number for hello in hellos if hello.record is not None]
        assert (former.record.number if former.record else None) == max(numbers, default=None)
        if former.record is not None:
            back = {h.member for h in hellos if h.record and h.record.number == max(numbers)}
            missing = [p.member for p in former.record.members if p.member not in back]
            assert [*former.missing] == missing

    def hellos(self) -> list[Hello]:
        return [member.hello for member in self.job.core.state.members.values()]

    def teardown(self) -> None:
        """Once faults stop and the wanted workers are there, steps are committed."""
        job = self.job
        if job.outcome is not None:
            return
        for agent in job.agents.values():
            agent.reachable, agent.stuck_in = True, None
        for seconds in (5.0, 20.0, 70.0):  # a worker that leaves may save the state first
            job.wait(seconds)
            for index in range(job.desired.workers):
                if not any(a.index == index and a.is_here for a in job.agents.values()):
                    job.add_agent(index)
        job.wait(10.0)
        at = job.step
        job.wait(5.0)
        assert job.step > at, job.core.state.waiting
        assert len(job.record.members) == min(job.desired.replicas, job.desired.max_replicas)


Faults.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestFaults = Faults.TestCase


class FaultsOfMany(Faults):
    """The same with 256 workers."""

    times = 64

    def __init__(self) -> None:
        super().__init__()
        self.job.step_seconds = STEP_SECONDS_OF_MANY

    def desired(self) -> Desired:
        return super().desired().model_copy(update={"replicas": WORKERS * self.times})


FaultsOfMany.TestCase.settings = settings(
    max_examples=4, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestFaultsOfMany = pytest.mark.slow(pytest.mark.timeout(900)(FaultsOfMany.TestCase))


class TooFewWorkers(RuleBasedStateMachine):
    """A generation has failed, and the next one needs more workers than there are. Each of them
    holds a part of its snapshot.
    """

    def __init__(self) -> None:
        super().__init__()
        config = make_sharded_config(10_000)
        self.job = Job(make_desired(replicas=4, min_replicas=4, max_replicas=4, train=config))
        *self.agents, lost = [self.job.add_agent(index) for index in range(4)]
        self.job.wait(1.0)
        self.job.crash(lost)
        self.job.wait(2.0)
        self.number = self.job.record.number
        for agent in self.agents:
            self.it_holds(agent.index, 1, (agent.index,))

    @rule(index=st.integers(0, 2), step=st.integers(1, 3), shards=st.sampled_from(SHARDS))
    def it_holds(self, index: int, step: int, shards: tuple[int, ...]) -> None:
        hold(self.job, self.agents[index], SnapshotNumber(step, self.number, 3), shards)

    @rule(index=st.integers(0, 2))
    def it_leaves(self, index: int) -> None:
        self.job.ask_to_leave(self.agents[index])

    @rule(index=st.integers(0, 2))
    def it_is_lost(self, index: int) -> None:
        self.job.report_lost(self.agents[index], "node NotReady")

    @rule(index=st.integers(0, 2), step=st.integers(1, 3))
    def a_checkpoint_is_saved(self, index: int, step: int) -> None:
        saved = make_saved(self.number, step)
        self.job.send(self.agents[index], saved.model_copy(update={"rank": index}))

    @invariant()
    def nobody_is_kept_who_is_to_go(self) -> None:
        state = self.job.core.state
        assert state.current is not None
        assert state.current.over
        who_leaves_is_needed(state, state.current)


TooFewWorkers.TestCase.settings = settings(
    max_examples=60, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTooFewWorkers = TooFewWorkers.TestCase


class FaultsOnTheWire(Faults):
    """The same with the messages that are sent in place of records."""

    def __init__(self) -> None:
        super().__init__()
        self.job = self.wire = WireJob(self.desired())
        for index in range(3):
            self.job.add_agent(index)

    @invariant()
    def all_know_the_same_record_of_a_generation(self) -> None:
        # `Job._deliver` asserts it for each Begin that an agent makes of what arrives.
        begun, known = self.wire.begun, self.wire.known
        assert all(known.get(number) in (None, record) for number, record in begun.items())
        records = [agent.state.record for agent in self.wire.agents.values()]
        assert all(record == begun[record.number] for record in records if record is not None)


FaultsOnTheWire.TestCase.settings = settings(
    max_examples=20, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


class TestFaultsOnTheWire(FaultsOnTheWire.TestCase):  # type: ignore[misc, valid-type]
    @pytest.fixture(autouse=True)
    def small_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A record of a few members has several pieces."""
        monkeypatch.setattr(record_transfer, "PIECE_CHARACTERS", 500)
