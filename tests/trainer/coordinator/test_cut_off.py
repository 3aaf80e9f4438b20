"""A partition cuts off a coordinator with workers who train on. Its successor, and the workers on
this side, see them only by what they write to the volume.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from regroup_trainer.coordinator.current_generation import FIRST_SECONDS, QUIET_SECONDS
from regroup_trainer.coordinator.serving.number_files import newest_former
from regroup_trainer.protocol.desired import LastKnown
from regroup_trainer.protocol.generation import GenerationNumber
from tests.support.coordinator_simulation import Job, SimulatedAgent, start_job

SECOND = GenerationNumber(1, 2)


def cut_off(newest: GenerationNumber = SECOND) -> tuple[Job, list[SimulatedAgent]]:
    """Workers 0 and 1 train on in generation 1.2 with their coordinator; its successor has only
    worker 2, which was in generation 1.1. `newest`: the newest one that the operator knows. If that
    is 1.1, 1.2 has lost 17 of its steps.
    """
    job, agents = start_job(min_replicas=1)
    job.cut_off(agents[2])
    job.wait(4.0)
    assert job.record.number == SECOND
    assert job.indices == [0, 1]
    job.cut_off(agents[0])
    job.cut_off(agents[1])
    step, size = (job.step, 2) if newest == SECOND else (job.resumed[SECOND] + 17, 3)
    known = LastKnown(step=step, time=1_000_000.0 + job.now, world_size=size, generation=newest)
    job.desired = job.desired.model_copy(update={"last_known": known})
    job.lineage, agents[2].reachable = SECOND, True
    job.start_coordinator(term=2)
    return job, agents


def train_elsewhere(job: Job, seconds: int) -> None:
    for _ in range(seconds):
        job.history_bytes += 100
        job.wait(1.0)


def test_no_generation_begins_while_the_one_that_was_cut_off_makes_steps() -> None:
    job, _ = cut_off()
    train_elsewhere(job, 60)
    state = job.core.state
    assert state.current is None
    assert state.waiting is not None
    assert state.waiting.reason == "CutOffGeneration"
    assert "generation 1.2 of a former coordinator trains on" in state.waiting.message
    job.wait(QUIET_SECONDS - 2.0)
    assert state.current is None
    job.wait(4.0)
    assert job.record.number == GenerationNumber(2, 1)
    assert job.indices == [2]


def test_a_pause_of_the_successor_does_not_end_the_one_that_was_cut_off() -> None:
    job, _ = cut_off()
    train_elsewhere(job, 5)
    job.history_bytes += 100
    job.pause_coordinator(QUIET_SECONDS + 2.0)
    train_elsewhere(job, 5)
    assert job.core.state.current is None


def test_it_goes_on_under_this_coordinator_when_its_workers_connect() -> None:
    job, agents = cut_off()
    train_elsewhere(job, 5)
    before = job.step
    agents[0].reachable = agents[1].reachable = True
    job.wait(5.0)
    assert sorted(job.indices) == [0, 1, 2]
    assert job.record.restored_from == "Peers"
    assert job.resumed[job.record.number] >= before, "worker 2 joined after the steps of the others"
    ledger = job.core.state.account.ledger()
    assert ledger.lost_steps == 0
    assert not ledger.restarts.get("infrastructure")


def test_what_it_had_lost_at_its_start_is_counted_where_the_operator_does_not_know_it() -> None:
    job, agents = cut_off(GenerationNumber(1, 1))
    train_elsewhere(job, 5)
    agents[0].reachable = agents[1].reachable = True
    job.wait(5.0)
    assert sorted(job.indices) == [0, 1, 2]
    state = job.core.state
    ledger = state.account.ledger()
    assert (ledger.lost_steps, ledger.restarts.get("infrastructure")) == (17, 1)
    unseen, joined = state.recoveries.records()
    assert (unseen.generation, unseen.lost_steps, unseen.restored_from) == (SECOND, 17, "Peers")
    assert unseen.message.startswith("a coordinator that died or was cut off saw: ")
    assert (joined.generation.term, joined.cause, joined.lost_steps) == (2, "resize", 0)
    (recovered,) = [one for one in state.journal.events() if one.reason == "Recovered"]
    assert recovered.message.endswith(
        "3 -> 2 ranks, resumed from step 11 of live ranks, 17 steps lost"
    )


def test_a_planned_end_that_nobody_saw_is_no_recovery() -> None:
    job, agents = start_job(workers=2)
    job.wait(5.0)
    first = job.record.number
    known = LastKnown(step=job.step, time=1_000_000.0 + job.now, world_size=2, generation=first)
    agents.append(job.add_agent(2))
    job.wait(3.0)
    second = job.record.number
    assert second > first
    job.desired = job.desired.model_copy(update={"last_known": known})
    job.start_coordinator(term=2)
    job.wait(3.0)
    state = job.core.state
    assert job.record.number == second
    assert state.recoveries.records() == ()
    assert not state.account.ledger().restarts


def test_one_that_makes_no_steps_is_not_waited_for() -> None:
    job, _ = cut_off()
    job.wait(FIRST_SECONDS + 1.0)
    assert job.record.number == GenerationNumber(2, 1)


def test_nobody_looks_where_nothing_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    job, agents = start_job()
    job.lineage = GenerationNumber(1, 1)
    monkeypatch.setattr(job.core, "on_former", None)
    job.start_coordinator(term=2)
    job.wait(3.0)
    assert job.core.state.current is not None
    assert all(agent.connected for agent in agents)


@pytest.mark.parametrize("is_superseded", [False, True])
def test_a_coordinator_that_was_frozen_forms_no_generation_beside_its_successors(
    is_superseded: bool,
) -> None:
    job, agents = start_job(min_replicas=1)
    before = job.record.number
    job.is_superseded = is_superseded
    job.pause_coordinator(13.0)
    job.cut_off(agents[0])  # it is with the successor
    job.wait(10.0)
    assert (job.record.number == before) is is_superseded


def test_the_newest_generation_of_a_former_term_is_found_with_the_size_of_its_history(
    tmp_path: Path,
) -> None:
    for folder in ("lineage", "history"):
        (tmp_path / folder).mkdir()
    assert newest_former(tmp_path, term=2) is None
    for name in ("1-2.json", "1-10.json", "2-1.json", "1-11.claim"):
        (tmp_path / "lineage" / name).touch()
    assert newest_former(tmp_path, term=2) == (GenerationNumber(1, 10), 0)
    (tmp_path / "history" / "1-10.jsonl").write_text("{}\n")
    assert newest_former(tmp_path, term=2) == (GenerationNumber(1, 10), 3)
