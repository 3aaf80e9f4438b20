"""The agent's fence, and what its hello echoes."""

from __future__ import annotations

from regroup_trainer.agent.memory import Memory
from regroup_trainer.contract import (
    CheckpointSaved,
    Finished,
    GenerationNumber,
    GenerationRecord,
    Kept,
    Progress,
    Restored,
    Standing,
)
from regroup_trainer.coordinator.formation import make_record
from regroup_trainer.environment import AgentEnvironment
from tests.trainer.coordinator.simulation import make_desired
from tests.trainer.test_contract import make_hello

ENVIRONMENT = AgentEnvironment(
    coordinator_url="http://c:1", namespace="d", job="gpt", member="uid-1", index=1, pod="p", node="n", address="a"
)


def make_generation(term: int, n: int) -> GenerationRecord:
    """A world of two workers."""
    number = GenerationNumber(term, n)
    return make_record(number, (make_hello(0), make_hello(1)), make_desired(), ("start", "test"))


def test_a_lower_generation_is_refused_for_ever() -> None:
    memory = Memory(ENVIRONMENT)
    assert memory.begin(make_generation(1, 3))
    assert not memory.begin(make_generation(1, 3))
    assert not memory.begin(make_generation(1, 2))
    assert memory.begin(make_generation(2, 1))
    assert not memory.begin(make_generation(1, 9))
    assert memory.hello().highest == GenerationNumber(2, 1)


def test_knows_its_ranks() -> None:
    memory = Memory(ENVIRONMENT)
    assert list(memory.local_ranks()) == []
    memory.begin(make_generation(1, 1))
    assert list(memory.local_ranks()) == [1]


def test_knows_which_rank_a_process_is_that_was_to_be_kept() -> None:
    memory = Memory(ENVIRONMENT)
    first, second = make_generation(1, 1), make_generation(1, 2)
    memory.begin(first)
    memory.note(Standing(generation=first.number, rank=1, kept=Kept(step=3)))
    assert memory.rank_now(first.number, 1) == 1
    memory.begin(second.model_copy(update={"rung": "L0", "members": tuple(reversed(second.members))}))
    now = memory.local_ranks()[0]
    assert memory.rank_now(first.number, 1) == now
    assert memory.rank_now(second.number, now) == now
    assert memory.rank_now(first.number, 0) is None
    memory.begin(make_generation(1, 3).model_copy(update={"rung": "L2"}))
    assert memory.rank_now(second.number, now) is None


def test_a_hello_echoes_what_a_new_coordinator_must_know() -> None:
    memory = Memory(ENVIRONMENT)
    record = make_generation(1, 1)
    memory.begin(record)
    progress = Progress(generation=record.number, rank=1, step=9, time=1.0)
    saved = CheckpointSaved(
        generation=record.number, rank=1, step=5, path="p", size_bytes=1, seconds=1, blocking_seconds=0, time=1
    )
    end = Finished(generation=record.number, rank=1, step=9, reason="leave")
    restored = Restored(generation=record.number, rank=1, step=4)
    for report in (restored, progress, saved, end):
        memory.note(report)
    hello = memory.hello()
    assert hello.restored == restored
    assert (hello.record, hello.progress, hello.checkpoint, hello.ended) == (record, progress, saved, (end,))


def test_a_new_generation_forgets_the_progress_and_ends_of_the_old_but_not_the_checkpoint() -> None:
    memory = Memory(ENVIRONMENT)
    first = make_generation(1, 1)
    memory.begin(first)
    memory.note(Progress(generation=first.number, rank=1, step=9, time=1.0))
    memory.note(Finished(generation=first.number, rank=1, step=9, reason="leave"))
    memory.begin(make_generation(1, 2))
    assert memory.hello().progress is None
    assert memory.hello().ended == ()
