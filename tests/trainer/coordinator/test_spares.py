"""Warm workers beyond `replicas`: who takes part, and who waits, in virtual time."""

from __future__ import annotations

from regroup_trainer.coordinator.coordinator_status import make_status
from tests.support.coordinator_simulation import TICK, Job, SimulatedAgent, make_desired


def start(spares: int = 1) -> tuple[Job, list[SimulatedAgent]]:
    job = Job(make_desired(steps=10_000, spares=spares))
    agents = [job.add_agent(index) for index in range(3 + spares)]
    job.wait(1.0)
    return job, agents


def test_spares_have_no_rank_and_are_not_released() -> None:
    job, agents = start(spares=2)
    assert job.indices == [0, 1, 2]
    assert all(agent.exit_code is None for agent in agents)
    status = make_status(job.core.state, 1)
    assert status.spares == 2
    assert status.message.endswith("on 3 workers, 2 spares")


def test_a_spare_takes_a_lost_workers_place_without_waiting_for_a_replacement() -> None:
    job, agents = start()
    job.crash(agents[1])
    job.wait(2 * job.desired.heartbeat_milliseconds / 1000 + 2 * TICK)
    assert sorted(job.indices) == [0, 2, 3]
    assert job.record.world_size == 3
    assert make_status(job.core.state, 1).spares == 0


def test_a_replacement_that_comes_later_is_the_next_spare_and_disturbs_nobody() -> None:
    job, agents = start()
    job.crash(agents[1])
    job.wait(2.0)
    number = job.record.number
    replacement = job.add_agent(1)
    job.wait(5.0)
    assert job.record.number == number
    assert replacement.exit_code is None
    assert make_status(job.core.state, 1).spares == 1


def test_a_lost_spare_does_not_end_the_generation() -> None:
    job, agents = start()
    number = job.record.number
    job.cut_off(agents[3])
    job.wait(5.0)
    assert job.record.number == number
    assert make_status(job.core.state, 1).spares == 0


def test_fewer_spares_give_the_place_back_to_the_lower_index() -> None:
    job, agents = start()
    job.crash(agents[1])
    job.wait(2.0)
    job.add_agent(1)
    job.update_desired(spares=0)
    job.wait(2.0)
    assert sorted(job.indices) == [0, 1, 2]
    assert agents[3].exit_code == 0


def test_a_smaller_job_keeps_its_spares() -> None:
    job, agents = start()
    job.update_desired(replicas=2)
    job.wait(2.0)
    assert job.record.world_size == 2
    assert make_status(job.core.state, 1).spares == 1
    assert [agent.exit_code for agent in agents] == [None, None, None, 0]


def test_after_two_losses_the_least_workers_go_on_at_once() -> None:
    job, agents = start()
    job.crash(agents[0])
    job.crash(agents[1])
    job.wait(2.0)
    assert sorted(job.indices) == [2, 3]
    assert make_status(job.core.state, 1).spares == 0
