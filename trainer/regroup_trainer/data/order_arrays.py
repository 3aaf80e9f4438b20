"""The order of `order`, for many samples at once; a test compares the two.

`order` is free of numpy, for audits where that is not installed. Training needs large batches in
microseconds.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from regroup_trainer.data.order import Permutation, SampleOrder

Ids = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]


def mix(values: _Words) -> _Words:
    """`order.mix` of each element."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def ids(order: SampleOrder, positions: range) -> Ids:
    """`order.ids`, [N]."""
    found = []
    first = positions.start
    while first < positions.stop:
        epoch, index = divmod(first, order.samples)
        count = min(positions.stop - first, order.samples - index)
        found.append(_permuted(_permutation(order.samples, order.seed, epoch), index, count))
        first += count
    return np.concatenate(found) if found else np.empty(0, np.int64)


def digest(samples: Ids) -> int:
    """`order.digest`."""
    return digests(samples[np.newaxis])[0]


def digests(rows: Ids) -> list[int]:
    """`order.digest` of each row of [N, B]."""
    sums: list[int] = (mix(rows.astype(np.uint64)) >> np.uint64(32)).sum(axis=1).tolist()
    return sums


_permutation = lru_cache(maxsize=4)(Permutation)


def _permuted(permutation: Permutation, first: int, count: int) -> Ids:
    """The images of the indices [first, first + count)."""
    values = _encrypted(permutation, np.arange(first, first + count, dtype=np.uint64))
    size = np.uint64(permutation.size)
    while (outside := values >= size).any():
        values[outside] = _encrypted(permutation, values[outside])
    return values.astype(np.int64)


def _encrypted(permutation: Permutation, values: _Words) -> _Words:
    half, mask = np.uint64(permutation.half), np.uint64((1 << permutation.half) - 1)
    left, right = values >> half, values & mask
    for key in permutation.keys:
        left, right = right, left ^ (mix(right ^ np.uint64(key)) & mask)
    return (left << half) | right
