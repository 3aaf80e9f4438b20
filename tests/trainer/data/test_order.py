"""The order of samples: a permutation, found in O(1), the same for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.data.order import Permutation, SampleOrder, digest

GOLDEN = [917, 292, 615, 386, 86]
GOLDEN_DIGEST = 12569163131


@given(size=st.integers(1, 500), seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 1000))
def test_an_epoch_visits_every_sample_once(size: int, seed: int, epoch: int) -> None:
    permutation = Permutation(size, seed, epoch)
    assert sorted(permutation[index] for index in range(size)) == list(range(size))


@given(size=st.integers(1, 2**40), position=st.integers(0, 2**50), seed=st.integers(0, 100))
def test_any_position_of_any_size_is_found_without_those_before_it(
    size: int, position: int, seed: int
) -> None:
    assert 0 <= SampleOrder(size, seed).sample(position) < size


@pytest.mark.parametrize("first", [0, 10**15])
def test_a_far_position_is_found_in_as_few_walks_as_a_near_one(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encrypt, walks = Permutation._encrypt, 0

    def count(permutation: Permutation, value: int) -> int:
        nonlocal walks
        walks += 1
        return encrypt(permutation, value)

    monkeypatch.setattr(Permutation, "_encrypt", count)
    SampleOrder(10**12, seed=1).ids(range(first, first + 100))
    assert 100 <= walks < 200, "the domain of 2^40 is hardly larger than the size"


def test_epochs_and_seeds_have_different_orders() -> None:
    def first_hundred(seed: int, epoch: int) -> list[int]:
        return [Permutation(10_000, seed, epoch)[index] for index in range(100)]

    orders = [first_hundred(0, 0), first_hundred(0, 1), first_hundred(1, 0)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


def test_samples_are_spread_evenly() -> None:
    permutation = Permutation(100_000, seed=3, epoch=0)
    mean = sum(permutation[index] for index in range(2000)) / 2000
    assert mean == pytest.approx(
        50_000, rel=0.05
    )  # four standard errors: 100000 / sqrt(12 x 2000) = 645


def test_a_batch_may_straddle_two_epochs() -> None:
    order = SampleOrder(10, seed=0)
    ids = order.ids(range(8, 12))
    assert ids == [
        Permutation(10, 0, 0)[8],
        Permutation(10, 0, 0)[9],
        Permutation(10, 0, 1)[0],
        Permutation(10, 0, 1)[1],
    ]


def test_the_order_never_changes_between_versions() -> None:
    assert SampleOrder(1000, seed=7).ids(range(5)) == GOLDEN
    assert digest(GOLDEN) == GOLDEN_DIGEST


@given(st.lists(st.integers(0, 2**40)), st.lists(st.integers(0, 2**40)))
def test_digests_of_shares_add_up_to_that_of_the_batch(a: list[int], b: list[int]) -> None:
    assert digest(a) + digest(b) == digest(b + a)


def test_digests_of_the_largest_batch_are_exact_in_float64() -> None:
    assert 2**20 * (2**32 - 1) < 2**53


def test_an_index_outside_the_epoch_is_an_error() -> None:
    with pytest.raises(IndexError):
        Permutation(10, 0, 0)[10]
