"""What a layout makes of a batch is what the trainer makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from regroup.planning.layouts import Batch, Grid, Layout, layouts
from regroup_trainer.data.batch import micro_batches

FSDP, DEEP = Grid("fsdp", 1, 1, 2, 1), Grid("fsdp", 1, 4, 2, 1)


@pytest.mark.parametrize("grid", [FSDP, DEEP, Grid("ddp", 1, 16, 1, 1)])
@pytest.mark.parametrize("samples", [1, 4, 24, 50])
@pytest.mark.parametrize("micro_batch", [1, 3, 8])
def test_a_rank_runs_the_micro_batches_of_the_trainer(
    grid: Grid, samples: int, micro_batch: int
) -> None:
    layout, batch = Layout(grid, micro_batch, "none"), Batch(samples, 128)
    real = micro_batches(np.arange(samples), 0, grid.data, micro_batch, grid.pipeline)
    assert layout.micro_batches(batch) == len(real)
    assert layout.samples(batch) == len(real[0].ids)


@pytest.mark.parametrize("grid", [FSDP, DEEP])
def test_a_division_is_considered_once_and_is_what_its_job_will_run(grid: Grid) -> None:
    batch = Batch(12, 128)
    found = [layout for layout in layouts(grid, batch) if layout.checkpointing == "none"]
    assert len({layout.micro_batches(batch) for layout in found}) == len(found)
    assert [layout.micro_batch for layout in found] == [layout.samples(batch) for layout in found]
