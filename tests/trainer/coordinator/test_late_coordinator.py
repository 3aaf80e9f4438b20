"""A coordinator that is late blames nobody: what it has not read yet, and what nobody could show
while it was paused, is held against no member and no rank.
"""

from __future__ import annotations

from regroup_trainer.protocol.generation import GenerationNumber
from tests.support.coordinator_simulation import Job, start_job

FIRST = GenerationNumber(1, 1)

# --- hellos that wait unread ----------------------------------------------------------------------


def succeed(job: Job) -> None:
    """A successor starts, and is too slow to serve any connection for now."""
    job.start_coordinator(term=2)
    job.read_until = job.now


def test_a_successor_waits_for_a_member_whose_connection_it_has_not_served() -> None:
    job, agents = start_job(steps=10_000)
    agents[2].reachable = False  # so it is to the coordinator
    succeed(job)
    job.wait(9.0)
    early = job.core.state.current
    assert early is None
    job.read_until, agents[2].reachable = None, True
    job.wait(1.0)
    current = job.core.state.current
    assert current is not None
    assert current.alive
    assert current.number == FIRST


def test_a_successor_loses_a_member_once_all_that_has_arrived_is_read() -> None:
    job, agents = start_job(steps=10_000)
    agents[2].alive = False
    succeed(job)
    job.wait(3.0)
    job.read_until = job.now - 0.1
    job.wait(1.0)
    assert job.indices == [0, 1]


def test_a_successor_forms_no_generation_without_members_that_it_has_not_served() -> None:
    """They would lose what they have trained. Two others were replaced meanwhile."""
    sizes = {"replicas": 4, "max_replicas": 4, "start_grace_seconds": 0.1}
    job, agents = start_job(workers=4, steps=10_000, **sizes)
    for agent in agents[:2]:
        agent.alive = False
    for agent in agents[2:]:
        agent.reachable = False
    step = job.step
    succeed(job)
    for index in range(2):
        job.add_agent(index)
    job.wait(5.0)
    assert job.core.state.current is None
    job.read_until = None
    for agent in agents[2:]:
        agent.reachable = True
    job.wait(5.0)
    assert job.indices == [2, 3, 0, 1]
    assert job.record.restored_from == "Peers"
    assert job.step > step


def test_a_job_to_suspend_is_not_suspended_before_the_hellos_of_its_members_are_read() -> None:
    job, agents = start_job(steps=10_000)
    job.update_desired(suspend=True)
    for agent in agents:
        agent.reachable = False
    succeed(job)
    job.wait(5.0)
    early = job.outcome
    assert early is None
    job.read_until = None
    for agent in agents:
        agent.reachable = True
    job.wait(1.0)
    assert job.outcome is not None
    assert job.saved_step == agents[0].step
