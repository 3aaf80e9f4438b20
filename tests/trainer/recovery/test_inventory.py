"""What ranks agree upon when they meet with states in their memories."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings

from regroup_trainer.protocol.generation import Decision, GenerationNumber
from regroup_trainer.recovery.inventory import Agreement, StateInventory, agree
from regroup_trainer.step.commit import Commit
from tests.support.least_time import least_cpu_seconds

OLD, NEW = GenerationNumber(1, 1), GenerationNumber(1, 2)
COMMIT = Commit(tokens=10, loss=1.0, gradient_norm=1.0, digest=7, decision=Decision.CONTINUE)


def holds(
    step: int, *, shard: int = 0, prepared: bool = False, generation: GenerationNumber = NEW
) -> StateInventory:
    """A rank that made `step` itself."""
    return StateInventory(shard, generation, step, prepared, COMMIT)


def test_equal_states_need_no_copy() -> None:
    assert agree([holds(5), holds(5)]) == Agreement(NEW, 5, COMMIT, frozenset(), ())


def test_a_joiner_gets_the_state_of_a_peer() -> None:
    agreed = agree([holds(5), holds(5), StateInventory(0), StateInventory(0)])
    assert agreed is not None
    assert agreed.transfers == ((0, 2), (1, 3))


def test_who_was_prepared_completes_the_step_that_another_saw_committed() -> None:
    agreed = agree([holds(5), holds(6), holds(5, prepared=True)])
    assert agreed is not None
    assert agreed.step == 6
    assert agreed.completing == {2}
    assert agreed.transfers == ((1, 0),)


def test_a_step_that_nobody_saw_committed_is_not_made() -> None:
    agreed = agree([holds(5, prepared=True), holds(5, prepared=True)])
    assert agreed is not None
    assert (agreed.step, agreed.completing) == (5, frozenset())


def test_a_part_of_the_state_that_lives_nowhere_is_not_made_up() -> None:
    assert (
        agree([holds(5, shard=0), StateInventory(1), holds(5, shard=0), StateInventory(1)]) is None
    )
    assert agree([holds(6, shard=0), holds(5, shard=1)]) is None
    assert agree([StateInventory(0), StateInventory(0)]) is None


def test_a_prepared_part_completes_the_state() -> None:
    agreed = agree([holds(6, shard=0), holds(5, shard=1, prepared=True)])
    assert agreed is not None
    assert (agreed.step, agreed.completing, agreed.transfers) == (6, frozenset({1}), ())


def test_the_state_of_an_abandoned_generation_does_not_count_however_far_it_came() -> None:
    agreed = agree([holds(90, generation=OLD), holds(5)])
    assert agreed is not None
    assert (agreed.generation, agreed.step, agreed.transfers) == (NEW, 5, ((1, 0),))


def test_generations_that_a_rank_never_trained_in_are_unused_for_all() -> None:
    third, fourth = GenerationNumber(1, 3), GenerationNumber(1, 4)
    agreed = agree(
        [
            replace(holds(5), unused=frozenset({third})),
            replace(holds(5), unused=frozenset({fourth})),
            StateInventory(0),
        ]
    )
    assert agreed is not None
    assert agreed.unused == {third, fourth}
    trained = agree(
        [replace(holds(5), unused=frozenset({third, fourth})), holds(5, generation=third)]
    )
    assert trained is not None
    assert (trained.generation, trained.unused) == (third, frozenset({fourth}))


INVENTORIES = st.builds(
    StateInventory,
    shard=st.integers(0, 1),
    generation=st.sampled_from([None, OLD, NEW]),
    step=st.integers(4, 6),
    prepared=st.booleans(),
    commit=st.sampled_from([None, COMMIT]),
)


def plain_transfers(inventories: list[StateInventory], agreed: Agreement) -> list[tuple[int, int]]:
    """Each receiver in turn takes the owner that has sent least, of those that had the step."""
    owners = [
        rank
        for rank, one in enumerate(inventories)
        if one.generation == agreed.generation
        and (one.step == agreed.step or rank in agreed.completing)
    ]
    pairs: list[tuple[int, int]] = []
    for rank in sorted({*range(len(inventories))}.difference(owners)):
        of_shard = [one for one in owners if inventories[one].shard == inventories[rank].shard]
        sent = {one: sum(source == one for source, _ in pairs) for one in of_shard}
        late = {one: one in agreed.completing for one in of_shard}
        pairs.append((min(of_shard, key=lambda one: (late[one], sent[one], one)), rank))
    return pairs


@given(st.lists(INVENTORIES, min_size=1, max_size=24))
def test_the_copies_are_those_of_a_plain_computation(inventories: list[StateInventory]) -> None:
    agreed = agree(inventories)
    if agreed is not None:
        assert list(agreed.transfers) == plain_transfers(inventories, agreed)


def test_thousands_of_joiners_share_the_sources_evenly_and_cost_little_time() -> None:
    ranks = 8192
    held = [holds(5) if rank < ranks // 4 else StateInventory(0) for rank in range(ranks)]
    assert least_cpu_seconds(lambda: agree(held), 1.0) < 1.0, "with a search for each joiner: 6 s"
    agreed = agree(held)
    assert agreed is not None
    assert set(Counter(source for source, _ in agreed.transfers).values()) == {3}


@given(st.lists(INVENTORIES, min_size=1, max_size=8))
def test_afterwards_all_hold_the_same_step(inventories: list[StateInventory]) -> None:
    all_hold_the_same_step_after(inventories)


@settings(max_examples=20)
@given(st.lists(INVENTORIES, min_size=1, max_size=24), st.sampled_from([1, 8, 1024, 8192]))
def test_so_do_8192_ranks(kinds: list[StateInventory], shards: int) -> None:
    """Each rank is of one of the kinds, and has one of the shards: 8,192 of FSDP."""
    all_hold_the_same_step_after(
        [replace(kinds[rank % len(kinds)], shard=rank % shards) for rank in range(8192)]
    )


def all_hold_the_same_step_after(inventories: list[StateInventory]) -> None:
    """Whatever was agreed: after the copies, if they agree at all."""
    agreed = agree(inventories)
    if agreed is None:
        return
    steps = {
        rank: one.step + (rank in agreed.completing)
        for rank, one in enumerate(inventories)
        if one.generation == agreed.generation
    }
    assert agreed.step == max(
        one.step for one in inventories if one.generation == agreed.generation
    )
    for source, destination in agreed.transfers:
        assert steps[source] == agreed.step
        assert inventories[source].shard == inventories[destination].shard
        assert destination not in agreed.completing
        steps[destination] = agreed.step
    assert steps == dict.fromkeys(range(len(inventories)), agreed.step)
    assert all(inventories[rank].prepared for rank in agreed.completing)
    assert not agreed.completing or agreed.commit is not None
