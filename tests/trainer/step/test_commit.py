"""The commit vector: what survives the sum, and what does not."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_trainer.errors import CommitError
from regroup_trainer.protocol.generation import Decision
from regroup_trainer.step.commit import LENGTH, Contribution, gradient_factor, guard, read

contributions = st.builds(
    Contribution,
    tokens=st.integers(1, 2**30),
    loss_sum=st.floats(0, 1e9),
    squared_norm=st.floats(0, 1e9),
    digest=st.integers(0, 2**50),
    decision=st.just(Decision.CONTINUE),
)


CPU = torch.device("cpu")


def summed(parts: list[Contribution]) -> list[float]:
    vector: list[float] = torch.stack([part.vector(CPU) for part in parts]).sum(dim=0).tolist()
    return vector


def part(**fields: object) -> Contribution:
    defaults = {
        "tokens": 10,
        "loss_sum": 20.0,
        "squared_norm": 2.0,
        "digest": 1,
        "decision": Decision.CONTINUE,
    }
    return Contribution(**{**defaults, **fields})  # type: ignore[arg-type]


@given(st.lists(contributions, min_size=1, max_size=8))
def test_integers_survive_the_sum_exactly(parts: list[Contribution]) -> None:
    commit = read(summed(parts), len(parts))
    assert commit.tokens == sum(part.tokens for part in parts)
    assert commit.digest == sum(part.digest for part in parts)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(Decision), st.integers(0, 3))
def test_the_commit_of_8192_ranks_is_that_of_a_plain_computation(
    seed: int, decision: Decision, not_ready: int
) -> None:
    random = Random(seed)
    parts = [
        part(
            tokens=random.randrange(1, 2**22),
            loss_sum=random.uniform(0, 1e6),
            squared_norm=random.uniform(0, 1e3),
            digest=random.randrange(2**40),
            decision=Decision.CONTINUE if rank else decision,
            ready=not 0 < rank <= not_ready,
        )
        for rank in range(8192)
    ]
    random.shuffle(parts)  # no order of the sum may matter
    commit = read(summed(parts), len(parts))
    tokens = sum(part.tokens for part in parts)
    postponed = not_ready and decision == Decision.SNAPSHOT
    assert (commit.tokens, commit.digest) == (tokens, sum(part.digest for part in parts))
    assert commit.decision is (Decision.CONTINUE if postponed else decision)
    assert commit.loss == pytest.approx(math.fsum(part.loss_sum for part in parts) / tokens)
    norm = math.sqrt(math.fsum(part.squared_norm for part in parts))
    assert commit.gradient_norm == pytest.approx(norm)
    with pytest.raises(CommitError, match=r"8191\.0 ranks instead of 8192"):
        read(summed(parts[1:]), len(parts))


@given(st.integers(1, 8), st.sampled_from(Decision))
def test_the_decision_of_rank_0_reaches_all(world_size: int, decision: Decision) -> None:
    parts = [part(decision=decision), *[part()] * (world_size - 1)]
    assert read(summed(parts), world_size).decision is decision


@given(st.sampled_from(Decision), st.lists(st.booleans(), max_size=8))
def test_a_rank_without_memory_ready_postpones_a_snapshot_and_nothing_else(
    decision: Decision, others: list[bool]
) -> None:
    postponed = decision == Decision.SNAPSHOT and not all(others)
    parts = [part(decision=decision), *[part(ready=ready) for ready in others]]
    agreed = read(summed(parts), len(parts)).decision
    assert agreed is (Decision.CONTINUE if postponed else decision)


def test_a_missing_rank_is_an_error() -> None:
    with pytest.raises(CommitError, match=r"counts 2\.0 and 2\.0 ranks instead of 3"):
        read(summed([part(), part()]), 3)


@pytest.mark.parametrize("end", [0, LENGTH - 1])
def test_a_torn_vector_is_an_error(end: int) -> None:
    vector = summed([part(), part()])
    vector[end] = 1.0
    with pytest.raises(CommitError):
        read(vector, 2)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_not_finite_becomes_none(broken: float) -> None:
    commit = read(summed([part(loss_sum=broken, squared_norm=broken)]), 1)
    assert commit.loss is None
    assert commit.gradient_norm is None
    with pytest.raises(ValueError, match="not finite"):
        gradient_factor(commit, 10, 1.0)


def test_gradients_are_corrected_for_tokens_and_clipped_by_the_norm_of_the_whole() -> None:
    commit = read(
        summed([part(squared_norm=8.0), part(squared_norm=8.0)]), 2
    )  # norm 4 of gradients / 40
    assert gradient_factor(commit, expected_tokens=40, clip=0.0) == 2.0
    assert gradient_factor(commit, expected_tokens=40, clip=1.0) == pytest.approx(1.0 / 4.0)
    assert gradient_factor(commit, expected_tokens=20, clip=100.0) == 1.0


@given(
    st.lists(contributions, min_size=1, max_size=4),
    st.sampled_from([None, 0, 2, 3, LENGTH - 1]),
    st.sampled_from([0.0, -1.0, math.nan, math.inf]),
    st.sampled_from([0.0, 1.0]),
)
def test_the_device_lets_through_what_the_host_does(
    parts: list[Contribution], place: int | None, damage: float, clip: float
) -> None:
    vector = summed(parts)
    if place is not None:
        vector[place] = damage
    held_back, divisor = guard(torch.tensor(vector, dtype=torch.float64), len(parts), 1000, clip)
    try:
        commit = read(vector, len(parts))
    except CommitError:
        assert held_back
        return
    assert bool(held_back) is not commit.finite
    if commit.finite:
        assert float(divisor) == pytest.approx(1 / gradient_factor(commit, 1000, clip), rel=1e-6)
