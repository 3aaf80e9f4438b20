"""Rung L0 as the coordinator sees it: who is asked to leave a world, who is waited for, what is taken for granted."""

from __future__ import annotations

import pytest

from regroup_trainer.contract import Kept, Standing
from regroup_trainer.coordinator.endings import free_seconds
from regroup_trainer.coordinator.world import LastCommit
from tests.trainer.coordinator.simulation import Job, SimulatedAgent, make_desired


def start(workers: int = 3, **desired: object) -> tuple[Job, list[SimulatedAgent]]:
    """A job whose workers have trained for more than a second, and saved step 10."""
    job = Job(make_desired(**desired))
    agents = [job.add_agent(index) for index in range(workers)]
    while job.step <= 12:
        job.wait(0.1)
    return job, agents


def last_recovery(job: Job) -> tuple[str, int | None]:
    """Its rung and its lost steps."""
    recovery = job.core.state.recoveries.records()[-1]
    return recovery.rung, recovery.lost_steps


def test_a_lost_worker_costs_no_step_where_others_hold_the_state() -> None:
    job, agents = start()
    job.crash(agents[1])
    job.wait(0.5)
    assert job.indices == [0, 2]
    assert last_recovery(job) == ("L0", 0)


def test_a_lost_worker_costs_the_steps_since_the_checkpoint_where_each_holds_its_own_part() -> None:
    job, agents = start(strategy="fsdp")
    at = job.step
    job.crash(agents[1])
    job.wait(0.5)
    assert last_recovery(job) == ("L2", at - 10)


def test_ranks_that_wait_for_a_silent_peer_are_told_to_leave_as_soon_as_it_is_lost() -> None:
    job, agents = start()
    job.silence(agents[0])
    job.wait(2.3)
    assert job.indices == [1, 2]
    assert last_recovery(job) == ("L0", 0)


def test_a_rank_that_cannot_be_freed_is_made_anew_from_its_peers() -> None:
    job, agents = start()
    job.hang(agents[2])
    job.crash(agents[1])
    job.wait(0.5)
    assert job.indices == [0, 2]
    assert last_recovery(job) == ("L0", 0)


def test_a_rank_that_says_nothing_is_waited_for_no_longer_than_a_moment() -> None:
    job, agents = start()
    agents[2].ranks_run = False  # it neither leaves nor ends
    job.crash(agents[1])
    job.wait(1.0)
    assert job.record.number.n == 1
    assert "waiting for rank 2 to leave generation 1.1" in job.core.state.waiting_for
    job.wait(1.0)
    assert job.indices == [0, 2]
    assert last_recovery(job) == ("L0", 0)


def test_a_joiner_costs_neither_a_save_nor_a_step() -> None:
    job, _ = start(workers=2)
    job.wait(3.0)
    saved, at = job.saved_step, job.step
    job.save_every = 1000
    job.add_agent(2)
    job.wait(1.0)
    assert job.indices == [0, 1, 2]
    assert job.resumed[job.record.number] >= at
    assert job.saved_step == saved
    assert last_recovery(job) == ("L0", 0)


def test_a_worker_that_leaves_costs_neither_a_save_nor_a_step() -> None:
    job, agents = start()
    job.save_every = 1000
    saved = job.saved_step
    job.ask_to_leave(agents[0])
    job.wait(1.0)
    assert job.indices == [1, 2]
    assert job.saved_step == saved
    assert last_recovery(job) == ("L0", 0)


def test_a_changed_configuration_is_begun_from_a_checkpoint() -> None:
    job, _ = start()
    job.save_every = 1000
    job.wish(train=make_desired(steps=200).train)
    job.wait(1.0)
    assert job.saved_step == job.resumed[job.record.number]


def test_a_new_coordinator_hears_of_those_who_wait_and_takes_them_on() -> None:
    job, agents = start()
    at = job.step
    agents[1].alive = False
    job.start_coordinator(2)
    job.wait(4.0)
    assert job.indices == [0, 2]
    assert job.resumed[job.record.number] >= at
    assert job.core.state.world is not None
    assert job.core.state.world.record.rung == "L0"


def test_when_all_who_held_the_state_are_gone_the_checkpoint_serves() -> None:
    job, agents = start()
    for agent in agents:
        job.crash(agent)
    for index in range(3):
        job.add_agent(index)
    job.wait(3.0)
    assert job.record.rung == "L2"
    assert job.resumed[job.record.number] == 10


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_rank_that_lost_its_world_breaks_it_for_all(strategy: str) -> None:
    job, agents = start(strategy=strategy)
    number = job.record.number
    agents[0].ranks_run = False
    job.say(agents[0], Standing(generation=number, rank=0, kept=Kept(step=job.step)))
    job.wait(2.5)
    assert job.record.number > number
    assert job.indices == [0, 1, 2]
    assert job.core.state.account.used("infrastructure") == 1


def test_a_rank_whose_agent_was_unreachable_when_its_world_ended_is_told_when_it_is_back() -> None:
    job, agents = start(workers=2, replicas=2, min_replicas=1)
    agents[0].connects = False
    job.disconnect(agents[0])
    job.silence(agents[1])
    while job.core.state.world is not None and job.core.state.world.alive:
        job.wait(0.02)
    job.wait(0.3)
    agents[0].connects = True
    before = agents[0].stands
    job.wait(0.1)
    assert (before, agents[0].stands) == (False, True)
    job.wait(job.desired.start_grace_seconds + 0.5)
    assert job.indices == [0]
    assert last_recovery(job) == ("L0", 0)


def test_a_rank_gets_the_time_of_its_steps_to_leave_a_world() -> None:
    job, _ = start()
    world = job.core.state.world
    assert world is not None
    assert world.progress is not None
    assert free_seconds(world) == 1.0
    world.progress = world.progress.model_copy(update={"seconds": {"step": 5.0 * world.progress.step}})
    assert free_seconds(world) == 10.0
    world.progress = world.progress.model_copy(update={"seconds": {"step": 500.0 * world.progress.step}})
    assert free_seconds(world) == 60.0
    world.progress, world.before = None, LastCommit(10, 0.0, step_seconds=2.0)
    assert free_seconds(world) == 4.0
