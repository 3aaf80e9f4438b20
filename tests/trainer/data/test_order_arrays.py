"""The order for many samples at once is the order."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_trainer.data import order, order_arrays
from regroup_trainer.data.order import SampleOrder


@settings(deadline=None)  # of a busy machine
@given(
    size=st.integers(1, 300),
    seed=st.integers(0, 2**31 - 1),
    first=st.integers(0, 2000),
    count=st.integers(0, 400),
)
def test_the_ids_of_any_range_are_the_same(size: int, seed: int, first: int, count: int) -> None:
    stream = SampleOrder(size, seed)
    assert order_arrays.ids(stream, range(first, first + count)).tolist() == stream.ids(
        range(first, first + count)
    )


@given(size=st.integers(1, 2**40), seed=st.integers(0, 2**31 - 1), first=st.integers(0, 2**50))
def test_the_ids_of_epochs_of_any_size_are_the_same(size: int, seed: int, first: int) -> None:
    stream = SampleOrder(size, seed)
    assert order_arrays.ids(stream, range(first, first + 5)).tolist() == stream.ids(
        range(first, first + 5)
    )


@given(st.lists(st.integers(0, 2**62), max_size=50))
def test_the_digest_is_the_same(samples: list[int]) -> None:
    assert order_arrays.digest(np.array(samples, dtype=np.int64)) == order.digest(samples)


def test_rows_have_digests_of_their_own() -> None:
    rows = [[3, 1, 4], [1, 5, 9]]
    assert order_arrays.digests(np.array(rows, dtype=np.int64)) == [
        order.digest(row) for row in rows
    ]
    assert order_arrays.digests(np.empty((2, 0), dtype=np.int64)) == [0, 0]


def test_an_epoch_visits_every_sample_once() -> None:
    ids = order_arrays.ids(SampleOrder(100_003, seed=3), range(100_003, 200_006))
    assert np.bincount(ids).tolist() == [1] * 100_003
