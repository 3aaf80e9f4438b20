"""What ranks read: byte-equal global batches at every world size, over any resizes, from any
position.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_trainer.data import Dataset
from regroup_trainer.data.batch import BatchPlanner
from regroup_trainer.data.dataset import Arrays
from regroup_trainer.data.order import SampleOrder, digest
from regroup_trainer.data.order_arrays import Ids
from regroup_trainer.errors import DataError
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.rank.loader import Loader
from regroup_trainer.step.rank_batch import RankBatch
from tests.support.least_time import least_cpu_seconds
from tests.support.samples import config, dataset
from tests.support.waiting import wait_until

BATCH, SAMPLES = 7, 23


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return dataset(
        config("synthetic", samples=SAMPLES, classes=10**6), 4, tmp_path_factory.mktemp("job")
    )


def loader(
    data: Dataset,
    rank: int,
    world_size: int,
    order: SampleOrder | None = None,
    *,
    is_patient: bool = False,
) -> Loader:
    planner = BatchPlanner(order or SampleOrder(data.samples, seed=3), BATCH, 2, rank, world_size)
    return Loader(
        data,
        planner,
        GenerationGroup(rank=rank, size=world_size, local_rank=0, device=torch.device("cpu")),
        is_patient=is_patient,
    )


def own_rows(batch: RankBatch) -> list[bytes]:
    """Inputs and targets of the samples that count, as bytes."""
    return [
        part.inputs[row].numpy().tobytes() + part.targets[row].numpy().tobytes()
        for part in batch.micro_batches
        for row in range(len(part.weights))
        if part.weights[row] == 1.0
    ]


def steps(data: Dataset, world_size: int, positions: Sequence[int]) -> list[list[bytes]]:
    """The global batches at `positions`, as ranks of this number read them."""
    batches: list[list[bytes]] = [[] for _ in positions]
    for rank in range(world_size):
        with closing(loader(data, rank, world_size)) as reader:
            for batch, position in zip(batches, positions, strict=True):
                batch.extend(own_rows(reader.training(position)))
    return batches


@settings(max_examples=25, deadline=None)
@given(
    sizes_and_steps=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=5
    )
)
def test_global_batches_are_byte_equal_over_any_resizes(
    data: Dataset, sizes_and_steps: list[tuple[int, int]]
) -> None:
    position, seen = 0, list[list[bytes]]()
    for world_size, count in sizes_and_steps:
        positions = [position + BATCH * step for step in range(count)]
        seen += steps(data, world_size, positions)
        position += BATCH * count
    assert seen == steps(data, 1, range(0, position, BATCH))


def test_an_epoch_of_resizes_has_each_sample_once(data: Dataset) -> None:
    rows = [row for step in range(SAMPLES) for row in steps(data, 1 + step % 4, [BATCH * step])[0]]
    assert all(
        len(set(rows[first : first + SAMPLES])) == SAMPLES for first in range(0, len(rows), SAMPLES)
    )


def test_digests_of_all_ranks_add_up_to_that_of_the_batch(data: Dataset) -> None:
    total = 0
    for rank in range(3):
        with closing(loader(data, rank, 3)) as reader:
            total += reader.training(14).digest
    assert total == digest(SampleOrder(SAMPLES, 3).ids(range(14, 14 + BATCH)))


def test_a_run_resumes_far_into_an_epoch_at_once(tmp_path: Path) -> None:
    data = dataset(config("synthetic", samples=10**9), 128, tmp_path)

    def resume() -> None:
        with closing(loader(data, 0, 1)) as reader:
            reader.training(900_000_000 // BATCH * BATCH)

    assert least_cpu_seconds(resume, 0.01) < 0.01


class Broken:
    """Has samples that cannot be read."""

    fingerprint, samples, held_out_samples, targets_per_sample, classes = "broken", SAMPLES, 0, 1, 2

    def read_training(self, ids: Ids) -> Arrays:
        raise DataError("the disk is gone")

    def read_held_out(self, ids: Ids) -> Arrays:
        return Arrays(np.zeros((0, 1)), np.zeros((0, 1), dtype=np.int64))


def test_what_goes_wrong_in_the_thread_is_raised_where_the_batch_is_needed() -> None:
    with (
        closing(loader(Broken(), 0, 1)) as reader,
        pytest.raises(DataError, match="the disk is gone"),
    ):
        reader.training(0)


class Away(Broken):
    """Is on a volume that gives an error."""

    held_out_samples = 2

    def __init__(self, code: int) -> None:
        self.code: int | None = code
        self.attempts = 0

    def read_training(self, ids: Ids) -> Arrays:
        self.attempts += 1
        if self.code is not None:
            raise OSError(self.code, os.strerror(self.code), "/data/train.bin")
        return Arrays(np.zeros((len(ids), 1)), np.zeros((len(ids), 1), dtype=np.int64))

    def read_held_out(self, ids: Ids) -> Arrays:
        return self.read_training(ids)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_an_error_of_a_volume_that_is_away_is_waited_for_and_named(code: int) -> None:
    data, named = Away(code), set[str]()

    def come_back(_since: float, met: str) -> None:
        named.add(met)
        if data.attempts > 1:
            data.code = None

    with closing(loader(data, 0, 1, is_patient=True)) as reader:
        assert reader.training(0, come_back).samples == BATCH
        data.code, data.attempts = code, 0
        assert reader.held_out(2, come_back)
    assert f"/data/train.bin: {os.strerror(code)}" in named


def test_an_error_that_does_not_pass_ends_the_rank_and_says_what_to_do() -> None:
    with (
        closing(loader(Away(errno.EACCES), 0, 1, is_patient=True)) as reader,
        pytest.raises(DataError, match=r"/data/train\.bin cannot be read \(Permission denied\)"),
    ):
        reader.training(0)


def test_where_nobody_could_report_an_error_it_ends_the_rank() -> None:
    with (
        closing(loader(Away(errno.EIO), 0, 1)) as reader,
        pytest.raises(DataError, match="Input/output error"),
    ):
        reader.training(0)


def test_who_leaves_a_loader_leaves_no_thread_that_tries_again() -> None:
    data = Away(errno.EIO)

    def leave(_since: float, met: str) -> None:
        if met:
            raise LookupError

    with pytest.raises(LookupError), closing(loader(data, 0, 1, is_patient=True)) as reader:
        reader.training(0, leave)
    wait_until("its end", lambda: not [t for t in threading.enumerate() if t.name == "prefetch"])
