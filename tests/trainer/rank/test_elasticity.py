"""A run whose world size changes trains as a run whose world size does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from regroup_trainer.checkpoint.history import audit, committed
from regroup_trainer.data.batch import BatchPlanner, virtual_shards
from regroup_trainer.data.order import SampleOrder
from regroup_trainer.protocol.config import TrainConfig
from tests.support.ranks import Template
from tests.support.shown_states import chained, state
from tests.support.whole_state import equal

WORLD_SIZES = (4, 3, 1, 2, 4)
DDP: dict[str, Any] = {"strategy": "ddp"}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.long)])
def test_a_job_whose_world_size_changes_trains_as_one_whose_does_not(
    template: Template, tmp_path: Path, strategy: str
) -> None:
    parallelism = {"strategy": strategy}
    changing = chained(
        template, tmp_path / "changing", [(size, parallelism) for size in WORLD_SIZES], steps=4
    )
    steady = chained(template, tmp_path / "steady", [(4, parallelism)], steps=20)
    differences = [abs(a - b) / b for a, b in zip(changing, steady, strict=True) if a and b]
    assert len(differences) == 20
    assert max(differences) <= 1e-5
    assert [step.world for step in committed(tmp_path / "changing" / "job")] == [
        n for n in WORLD_SIZES for _ in range(4)
    ]
    assert audit(tmp_path / "changing" / "job") == []


@pytest.mark.slow
@pytest.mark.parametrize("world_sizes", [WORLD_SIZES, (7, 2)])
def test_an_exact_run_has_the_same_bits_with_any_world_sizes(
    template: Template, tmp_path: Path, world_sizes: tuple[int, ...]
) -> None:
    exact = {"deterministic": "exact", "micro_batch_size": 2}
    steps = 3 if len(world_sizes) > 2 else 7
    total = steps * len(world_sizes)
    changing = chained(
        template,
        tmp_path / "changing",
        [(size, DDP) for size in world_sizes],
        steps=steps,
        training=dict(exact),
    )
    steady = chained(template, tmp_path / "steady", [(2, DDP)], steps=total, training=dict(exact))
    assert changing == steady
    assert equal(
        state(tmp_path / "changing" / str(len(world_sizes))), state(tmp_path / "steady" / "1")
    )
    assert audit(tmp_path / "changing" / "job") == []


def test_an_exact_run_is_near_one_that_rounds(template: Template, tmp_path: Path) -> None:
    exact = chained(
        template, tmp_path / "exact", [(3, DDP)], steps=4, training={"deterministic": "exact"}
    )
    rounded = chained(template, tmp_path / "rounded", [(3, DDP)], steps=4)
    assert exact == pytest.approx(rounded, rel=1e-5)


@pytest.mark.parametrize(
    "parallelism",
    [{"strategy": "fsdp"}, {"strategy": "zero"}, {"gradientHook": "bf16"}, {"tensorParallel": 2}],
)
def test_exact_runs_are_refused_where_copies_are_not_whole(parallelism: dict[str, Any]) -> None:
    with pytest.raises(
        ValidationError, match=r"it needs parallelism\.strategy ddp without other options"
    ):
        TrainConfig.model_validate(
            {"parallelism": parallelism, "training": {"deterministic": "exact"}}
        )


def exact_planners(world_size: int, batch: int, micro: int) -> list[BatchPlanner]:
    order = SampleOrder(101, 7)
    return [
        BatchPlanner(order, batch, micro, rank, world_size, exact=True)
        for rank in range(world_size)
    ]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(1, 40), st.integers(1, 9))
def test_virtual_shards_are_byte_equal_for_every_world_size_and_no_sample_is_lost(
    world_sizes: list[int], batch: int, micro: int
) -> None:
    position, seen = 0, list[int]()
    for world_size in world_sizes:
        plans = [planner.plan(position) for planner in exact_planners(world_size, batch, micro)]
        shards = [part for plan in plans for part in plan.micro_batches]
        (alone,) = exact_planners(1, batch, micro)
        expected = alone.plan(position).micro_batches
        assert len(shards) == virtual_shards(batch, micro)
        assert [(s.ids.tobytes(), s.weights.tobytes()) for s in shards] == [
            (s.ids.tobytes(), s.weights.tobytes()) for s in expected
        ]
        seen += [int(sample) for plan in plans for sample in plan.own_ids]
        position += plans[0].count
    assert seen == SampleOrder(101, 7).ids(range(position))
