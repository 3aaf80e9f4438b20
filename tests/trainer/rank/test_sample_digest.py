"""The digest of a user's samples: what changes it, and what it leaves as it was."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from regroup_trainer.data.data_set_fingerprint import VARY
from regroup_trainer.rank.sample_digest import read_digest


class Made:
    """A data set of 40 samples, each made from its number."""

    def __init__(self, make: Callable[[int], Any], size: int = 40) -> None:
        self._make, self._size = make, size
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        self.reads.append(index)
        return self._make(index)


@dataclass
class Sentence:
    """A sample of a class of the user's own."""

    words: str
    length: int


MAKERS: dict[str, Callable[[int, int], Any]] = {
    "integers": lambda index, shift: torch.tensor([index + shift]),
    "fractions": lambda index, shift: torch.full((3,), 1.0 + index + shift),
    "half": lambda index, shift: torch.full((3,), 1.0 + index + shift, dtype=torch.bfloat16),
    "numpy": lambda index, shift: np.array([index + shift], dtype=np.int32),
    "texts": lambda index, shift: {"text": f"{index}-{shift}", "label": 1},
    "pairs": lambda index, shift: (torch.zeros(2), [float(index), float(shift)]),
}


def shifted(kind: str, shift: int) -> Made:
    """A data set of a kind; another shift gives other samples."""
    return Made(lambda index: MAKERS[kind](index, shift))


@pytest.mark.parametrize("kind", MAKERS)
def test_equal_samples_have_one_digest_and_others_another(kind: str) -> None:
    first, again, other = (read_digest(shifted(kind, shift), {}) for shift in (0, 0, 1))
    assert first == again != other
    assert len(first) == 16


def test_objects_of_a_users_own_count_too() -> None:
    def digest_of(words: str) -> str:
        data = Made(lambda index: Sentence(words, index))
        return read_digest(data, {"collate_fn": lambda samples: samples[0]})

    assert digest_of("a") == digest_of("a") != digest_of("b")


def test_another_processor_may_compute_fractions_a_little_differently() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    little = values * (1 + 1e-6)
    assert read_digest(Made(lambda _: values), {}) == read_digest(Made(lambda _: little), {})


def test_eight_reads_at_fixed_places_suffice_for_any_size() -> None:
    data = Made(lambda index: index, size=10**9)
    read_digest(data, {})
    assert data.reads == [0, 333333333, 666666666, 999999999] * 2
    assert read_digest(Made(lambda index: index, size=1), {})
    assert read_digest(Made(lambda index: index, size=0), {}) == ""


@pytest.mark.parametrize(
    "augmented",
    [
        lambda index: torch.rand(3) + index,
        lambda index: index + random.random(),
        lambda index: np.random.default_rng().integers(10**9),
    ],
    ids=["torch", "random", "numpy"],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_random_augmentation_has_no_digest(augmented: Callable[[int], Any], workers: int) -> None:
    options = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    assert read_digest(Made(augmented), options) == VARY


def test_the_random_numbers_of_the_program_stay_as_they_were() -> None:
    def numbers() -> tuple[float, ...]:
        return torch.rand(1).item(), random.random(), float(np.random.random())

    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(5)
    expected = numbers()
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(5)
    read_digest(Made(lambda index: [index, *numbers()]), {})
    assert numbers() == expected


def test_with_workers_a_worker_reads_since_files_may_be_opened_by_who_reads_first() -> None:
    data = Made(lambda index: index)
    read_digest(data, {"num_workers": 2, "multiprocessing_context": "fork"})
    assert data.reads == [], "this process has read nothing"


@pytest.mark.parametrize(
    "make", [lambda index: [][index], lambda index: object()], ids=["an error", "an object"]
)
def test_samples_that_cannot_be_compared_have_no_digest(make: Callable[[int], Any]) -> None:
    assert read_digest(Made(make), {"collate_fn": lambda samples: samples}) == ""
