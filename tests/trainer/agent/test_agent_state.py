"""The agent's fence, and what its hello repeats."""

from __future__ import annotations

import pytest

from regroup_trainer.agent.agent_state import AgentState
from regroup_trainer.protocol.agent_messages import RankExit, ShortHello
from regroup_trainer.protocol.environment import AgentEnvironment
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.message import FRAME_BYTES, TEXT_LIMIT
from regroup_trainer.protocol.rank_messages import (
    Finished,
    Parked,
    Progress,
    Restored,
    Retained,
)
from tests.support.generations import make_generation, make_saved

ENVIRONMENT = AgentEnvironment(
    coordinator_url="http://c:1",
    namespace="d",
    job="gpt",
    member="uid-1",
    index=1,
    pod="p",
    node="n",
    address="a",
)


def test_a_lower_generation_is_refused_for_ever() -> None:
    state = AgentState(ENVIRONMENT)
    assert state.begin(make_generation(1, 3))
    assert not state.begin(make_generation(1, 3))
    assert not state.begin(make_generation(1, 2))
    assert state.begin(make_generation(2, 1))
    assert not state.begin(make_generation(1, 9))
    assert state.hello().highest == GenerationNumber(2, 1)


def test_knows_its_ranks() -> None:
    state = AgentState(ENVIRONMENT)
    assert list(state.local_ranks()) == []
    state.begin(make_generation(1, 1))
    assert list(state.local_ranks()) == [1]


def test_ranks_that_got_a_signal_are_forgotten_when_the_next_generation_begins() -> None:
    state = AgentState(ENVIRONMENT)
    state.begin(make_generation(1, 1))
    state.terminated.add(1)
    state.begin(make_generation(1, 2))
    assert state.terminated == set()


def test_knows_which_rank_a_process_is_that_was_parked() -> None:
    state = AgentState(ENVIRONMENT)
    first, second = make_generation(1, 1), make_generation(1, 2)
    state.begin(first)
    state.note(Parked(generation=first.number, rank=1, retained=Retained(step=3)))
    assert state.rank_now(first.number, 1) == 1
    state.begin(
        second.model_copy(
            update={"restored_from": "Peers", "members": tuple(reversed(second.members))}
        )
    )
    now = state.local_ranks()[0]
    assert state.rank_now(first.number, 1) == now
    assert state.rank_now(second.number, now) == now
    assert state.rank_now(first.number, 0) is None
    state.begin(make_generation(1, 3).model_copy(update={"restored_from": "Checkpoint"}))
    assert state.rank_now(second.number, now) is None


def test_a_hello_repeats_what_a_new_coordinator_must_know() -> None:
    state = AgentState(ENVIRONMENT)
    record = make_generation(1, 1)
    state.begin(record)
    progress = Progress(generation=record.number, rank=1, step=9, time=1.0)
    saved = make_saved(record.number, 5, rank=1)
    end = Finished(generation=record.number, rank=1, step=9, reason="leave")
    restored = Restored(generation=record.number, rank=1, step=4)
    for report in (restored, progress, saved, end):
        state.note(report)
    hello = state.hello()
    assert hello.restored == restored
    assert (hello.record, hello.progress, hello.checkpoint, hello.ended) == (
        record,
        progress,
        saved,
        (end,),
    )


def test_a_new_generation_forgets_the_progress_and_ends_of_the_old_but_not_the_checkpoint() -> None:
    state = AgentState(ENVIRONMENT)
    first = make_generation(1, 1)
    state.begin(first)
    state.note(Progress(generation=first.number, rank=1, step=9, time=1.0))
    state.note(Finished(generation=first.number, rank=1, step=9, reason="leave"))
    state.begin(make_generation(1, 2))
    assert state.hello().progress is None
    assert state.hello().ended == ()


@pytest.mark.parametrize(("ranks", "letter"), [(64, "\x01"), (1024, "x")])
def test_a_hello_fits_its_bound_when_all_ranks_have_failed(ranks: int, letter: str) -> None:
    message = letter * TEXT_LIMIT
    state = AgentState(ENVIRONMENT.model_copy(update={"ranks": ranks}))
    state.begin(make_generation(1, 1))
    for rank in range(ranks):
        number = GenerationNumber(1, 1)
        end = RankExit(generation=number, rank=rank, exit_code=1, cause="error", message=message)
        state.note(end)
    text = state.hello().shortened().model_dump_json()
    assert len(text) < FRAME_BYTES
    ended = ShortHello.model_validate_json(text).ended
    assert len(ended) == ranks
    assert all(isinstance(end, RankExit) and end.message for end in ended)


def test_the_hello_of_one_failed_rank_has_its_whole_message() -> None:
    state = AgentState(ENVIRONMENT)
    number, message = GenerationNumber(1, 1), "x" * TEXT_LIMIT
    state.begin(make_generation(1, 1))
    state.note(RankExit(generation=number, rank=1, exit_code=1, cause="error", message=message))
    assert state.hello().ended == tuple(state.ended.values())
