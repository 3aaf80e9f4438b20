"""Which memory snapshots the coordinator lets the next generation resume from, in virtual time."""

from __future__ import annotations

import pytest

from regroup_trainer.protocol.agent_messages import HeldSnapshot, HeldSnapshots, RankExit
from regroup_trainer.protocol.generation import GenerationNumber, SnapshotNumber, SnapshotSource
from regroup_trainer.protocol.rank_messages import Restored
from regroup_trainer.snapshots.neighbours import neighbours
from tests.support.coordinator_simulation import (
    Job,
    SimulatedAgent,
    make_desired,
    make_sharded_config,
)
from tests.support.generations import make_saved
from tests.support.large_job import LargeJob, uid

SHARDS = 3


@pytest.fixture
def job() -> Job:
    """Three workers on nodes of their own."""
    return make_job("node-0", "node-1", "node-2")


def make_job(*nodes: str) -> Job:
    """A worker of one rank on each of these nodes. They train, and save no checkpoint soon."""
    job = Job(
        make_desired(min_replicas=1, train=make_sharded_config(100_000)), save_every=1_000_000
    )
    for index, node in enumerate(nodes):
        job.add_agent(index, node)
    job.wait(4.0)
    assert job.indices == [0, 1, 2]
    return job


def agents(job: Job) -> list[SimulatedAgent]:
    """The agents of the current generation, in rank order."""
    return [job.agents[place.member] for place in job.record.members]


def keep(job: Job, agent: SimulatedAgent, step: int, *shards: int) -> SnapshotNumber:
    """An agent holds these shards of the current generation's snapshot, and nothing else."""
    number = SnapshotNumber(step, job.record.number, SHARDS)
    job.send(agent, HeldSnapshots(snapshots=(HeldSnapshot(number=number, shards=shards),)))
    return number


def keep_all(job: Job, step: int) -> SnapshotNumber:
    """Each agent holds its own shard and a copy of that of the one before it."""
    numbers = [
        keep(job, agent, step, rank, (rank - 1) % SHARDS) for rank, agent in enumerate(agents(job))
    ]
    return numbers[-1]


def test_a_snapshot_is_complete_when_two_members_hold_each_shard(job: Job) -> None:
    first, second, third = agents(job)
    keep(job, first, 10, 0, 2)
    keep(job, second, 10, 1, 0)
    keep(job, third, 10, 2)
    assert [agent.announced_complete for agent in agents(job)] == [None] * 3
    number = keep(job, third, 10, 2, 1)
    assert [agent.announced_complete for agent in agents(job)] == [number] * 3


def test_two_holders_on_one_node_do_not_make_a_snapshot_complete_where_there_is_another_node() -> (
    None
):
    job = make_job("a", "a", "b")
    first, second, third = agents(job)
    keep(job, first, 10, 0, 1, 2)
    keep(job, second, 10, 1, 0)
    keep(job, third, 10, 2)
    assert third.announced_complete is None  # the loss of node a would take shards 0 and 1
    number = keep(job, third, 10, 2, 0, 1)
    assert [agent.announced_complete for agent in agents(job)] == [number] * 3


def test_where_all_are_on_one_node_two_members_are_enough() -> None:
    job = make_job("a", "a", "a")
    number = keep_all(job, 10)
    assert [agent.announced_complete for agent in agents(job)] == [number] * 3


def test_what_agents_forget_without_a_word_is_no_source(job: Job) -> None:
    """They forget older snapshots when a newer one is complete, and report nothing then."""
    first, second, third = agents(job)
    keep(job, first, 20, 0, 2)
    keep(job, second, 20, 1, 0)
    older, newer = (SnapshotNumber(step, job.record.number, SHARDS) for step in (10, 20))
    whole, own = (
        HeldSnapshot(number=older, shards=(0, 1, 2)),
        HeldSnapshot(number=newer, shards=(2, 1)),
    )
    job.send(third, HeldSnapshots(snapshots=(whole, own)))
    assert third.announced_complete == newer
    for lost in (first, second):
        job.crash(lost)
    job.wait(8.0)
    assert len(job.record.members) == 1
    assert job.record.restored_from != "Snapshot"


@pytest.mark.parametrize("nodes", [("a", "a", "b"), ("a", "b", "b"), ("a", "b", "a")])
@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_lost_node_takes_no_shard_of_a_complete_snapshot_with_it(
    nodes: tuple[str, ...], lost: str
) -> None:
    job = make_job(*nodes)
    number = keep_with_neighbours(job, 10)
    survivors = [agent for agent in agents(job) if agent.node != lost]
    assert all(agent.announced_complete == number for agent in survivors)
    for agent in agents(job):
        if agent.node == lost:
            job.crash(agent)
    job.wait(8.0)
    assert len(job.record.members) == len(survivors)
    assert (job.record.restored_from, job.record.snapshot and job.record.snapshot.number) == (
        "Snapshot",
        number,
    )


def keep_with_neighbours(job: Job, step: int) -> SnapshotNumber:
    """Each agent holds its own shard and those of the members whose neighbour it is."""
    places = job.record.members
    number = SnapshotNumber(step, job.record.number, SHARDS)
    for agent in agents(job):
        theirs = {
            rank
            for rank, place in enumerate(places)
            if neighbours(places)[place.member].member == agent.name
        }
        own = next(rank for rank, place in enumerate(places) if place.member == agent.name)
        number = keep(job, agent, step, *sorted({own, *theirs}))
    return number


def test_a_member_that_was_away_gets_the_announcement_later(job: Job) -> None:
    first = agents(job)[0]
    number = keep_all(job, 10)
    first.announced_complete = None
    job.disconnect(first)
    job.wait(0.2)
    assert first.announced_complete == number


def test_a_dead_rank_costs_the_steps_since_the_snapshot(job: Job) -> None:
    keep_all(job, job.step - 5)
    second = agents(job)[1]
    expected, before = job.step - 5, job.record.number
    job.fail_rank(second)
    job.wait(2.0)
    assert job.record.number > before
    assert (job.record.restored_from, job.record.snapshot and job.record.snapshot.number.step) == (
        "Snapshot",
        expected,
    )
    (recovery,) = job.core.state.recoveries.records()
    assert (recovery.restored_from, recovery.resumed_from_step, recovery.lost_steps) == (
        "Snapshot",
        expected,
        5,
    )


def test_a_lost_member_is_replaced_by_its_neighbours_copy(job: Job) -> None:
    number = keep_all(job, 10)
    third = agents(job)[2]
    job.crash(third)
    job.wait(4.0)
    assert job.record.restored_from == "Snapshot"
    source = job.record.snapshot
    assert source is not None
    assert source.number == number
    assert len(source.places) == SHARDS


def test_ranks_read_from_a_member_that_goes_only_what_no_other_has(job: Job) -> None:
    keep_all(job, 10)
    first, _, third = agents(job)
    job.update_desired(replicas=2, max_replicas=2)
    job.fail_rank(first)
    job.wait(4.0)
    assert job.record.restored_from == "Snapshot"
    assert job.record.snapshot is not None
    assert third.exit_code == 0
    assert set(job.record.snapshot.places) == {place.endpoint for place in job.record.members}


def test_a_member_that_goes_stays_until_ranks_have_read_what_it_alone_holds(job: Job) -> None:
    keep_all(job, 10)
    first, second, third = agents(job)
    first.hangs_at_start = True
    job.update_desired(replicas=1, max_replicas=1)
    job.crash(second)
    job.wait(4.0)
    record = job.record
    assert record.restored_from == "Snapshot"
    assert agents(job) == [first]
    assert third.exit_code is None
    job.send(first, Restored(generation=record.number, rank=0, step=10))
    job.wait(1.0)
    assert third.exit_code == 0


@pytest.fixture
def short_of_workers(job: Job) -> Job:
    """The first of three workers leaves, the last one is lost, and two are too few. Both that are
    left hold what nobody else has, of a snapshot that is needed.
    """
    first, second, third = agents(job)
    job.update_desired(min_replicas=3)
    keep_all(job, job.step)
    job.crash(third)
    job.ask_to_leave(first)
    job.wait(2.0)
    assert job.core.state.waiting is not None
    assert job.core.state.waiting.reason == "TooFewWorkers"
    assert first.exit_code is None
    assert second.exit_code is None
    return job


def test_who_leaves_stays_only_until_another_holds_what_it_has(short_of_workers: Job) -> None:
    first, second, _ = agents(short_of_workers)
    (held,) = short_of_workers.core.state.members[second.name].snapshots
    keep(short_of_workers, second, held.number.step, 0, 1, 2)
    assert first.exit_code == 0


def test_who_leaves_stays_only_until_a_newer_checkpoint_is_saved(short_of_workers: Job) -> None:
    first = agents(short_of_workers)[0]
    newer = make_saved(short_of_workers.record.number, short_of_workers.step + 1)
    short_of_workers.send(first, newer)
    assert first.exit_code == 0


def test_who_leaves_stays_only_while_its_snapshot_is_whole(short_of_workers: Job) -> None:
    first, second, _ = agents(short_of_workers)
    short_of_workers.report_lost(second, "node NotReady")
    assert first.exit_code == 0


def test_a_successor_knows_that_a_generation_which_trains_has_read_its_snapshot() -> None:
    """No hello says of each rank that it has its state."""
    ranks = 8
    job = LargeJob(4, ranks)
    for number in range(4):
        job.hello(number)
    for worker, report in job.restored():
        job.send(worker, report)
    snapshot = SnapshotNumber(1, job.record.number, ranks)
    source = SnapshotSource(number=snapshot, places=("10.0.0.1:9",) * ranks)
    record = job.record.model_copy(update={"restored_from": "Snapshot", "snapshot": source})
    progress = job.progress()
    job.start_coordinator(2)
    for number in range(4):
        job.hello(number, record)
    job.hello(9)  # it is one too many, and has what ranks may read
    assert uid(9) in job.core.state.members
    progress[0]()
    assert uid(9) not in job.core.state.members


def test_a_job_saves_a_snapshot_before_it_is_suspended(job: Job) -> None:
    number = keep_all(job, job.step - 5)
    job.update_desired(suspend=True)
    job.fail_rank(agents(job)[1])
    job.wait(8.0)
    assert job.core.state.outcome is not None
    assert job.core.state.outcome.result == "suspended"
    assert job.saved_step >= number.step


def test_two_lost_members_leave_a_shard_missing_and_the_state_to_the_checkpoint(job: Job) -> None:
    keep_all(job, 10)
    _, second, third = agents(job)
    job.crash(second)
    job.crash(third)
    job.wait(1.0)
    job.add_agent(1)
    job.add_agent(2)
    job.wait(8.0)
    assert job.record.restored_from == "Checkpoint"
    assert job.record.snapshot is None


def test_a_newer_checkpoint_goes_before_memory(job: Job) -> None:
    first, second, _ = agents(job)
    keep_all(job, 10)
    saved = make_saved(job.record.number, 11)
    job.send(first, saved)
    job.fail_rank(second)
    job.wait(2.0)
    assert job.record.restored_from == "Checkpoint"


def test_a_snapshot_beyond_the_step_of_a_later_generation_is_abandoned(job: Job) -> None:
    """Members still hold the snapshot, but another generation began at a lower step."""
    number = keep_all(job, 50)
    _, second, _ = agents(job)
    job.core.state.resumed.append((GenerationNumber(1, 99), 20))
    job.fail_rank(second)
    job.wait(2.0)
    assert number.step == 50
    assert job.record.restored_from == "Checkpoint"


def test_a_snapshot_that_could_not_even_be_read_is_not_tried_again(job: Job) -> None:
    keep_all(job, 10)
    _, second, _ = agents(job)
    before = job.record.number
    job.fail_rank(second)
    while job.record.number == before:
        job.wait(0.1)
    # As if the ranks had died while they read the snapshot.
    job.core.state.current.restored.clear()  # type: ignore[union-attr]
    failing, begun = agents(job)[0], job.record.number
    job.send(failing, RankExit(generation=begun, rank=0, exit_code=1, cause="error"))
    while job.record.number == begun:
        job.wait(0.1)
    sources = [record.restored_from for record in job.begun.values()]
    assert sources[-2:] == ["Snapshot", "Checkpoint"]


def test_the_recovery_says_where_the_state_came_from_in_the_end(job: Job) -> None:
    keep_all(job, 10)
    _, second, _ = agents(job)
    before = job.record.number
    job.fail_rank(second)
    while job.record.number == before:
        job.wait(0.05)
    assert job.record.restored_from == "Snapshot"
    first = agents(job)[0]
    job.send(
        first,
        Restored(
            generation=job.record.number,
            rank=0,
            step=5,
            restored_from="Checkpoint",
            fallback_reason="shard 1 is damaged",
        ),
    )
    assert job.core.state.recoveries.records()[-1].restored_from == "Checkpoint"
    assert any(event.reason == "SnapshotPassedOver" for event in job.core.state.journal.events())
