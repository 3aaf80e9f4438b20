"""The own time of a rank: what all wait for shows in the rank that is slow, and in no other."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import RankOutcome, Template, generation, succeeded, train_config

SLOW_SECONDS = 0.05
"""In each of the model's blocks, many times what a tiny block needs on a busy machine."""
STEPS = 8


def own_times(outcome: RankOutcome) -> float:
    return statistics.median(report.compute_seconds for report in outcome.progress)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_slow_rank_stands_out_though_all_ranks_take_the_same_time_for_a_step(
    template: Template, tmp_path: Path, strategy: str
) -> None:
    config = train_config(
        parallelism={"strategy": strategy}, training={"steps": STEPS, "global_batch_size": 4}
    )
    outcomes = template.run(
        generation(tmp_path, 2, config),
        entry="tests.support.rank_faults:compute_slowly",
        options={"rank": 1, "seconds": SLOW_SECONDS},
    )
    succeeded(outcomes)
    usual, slow = (own_times(outcome) for outcome in outcomes)
    assert slow > config.model.size.layers * SLOW_SECONDS
    assert 0 < usual < slow / 2
    whole = [outcome.progress[-1].time - outcome.progress[0].time for outcome in outcomes]
    assert whole[0] == pytest.approx(whole[1], rel=0.2), "the collectives hide who is slow"


@pytest.mark.parametrize(
    "options", [{"tensor_parallel": 2}, {"pipeline_parallel": 2}], ids=["tensor", "pipeline"]
)
def test_where_ranks_wait_within_the_layers_nothing_is_reported(
    template: Template, tmp_path: Path, options: dict[str, Any]
) -> None:
    config = train_config(
        parallelism=options, training={"steps": 2, "global_batch_size": 4, "micro_batch_size": 2}
    )
    outcomes = template.run(generation(tmp_path, 2, config))
    succeeded(outcomes)
    assert {report.compute_seconds for outcome in outcomes for report in outcome.progress} == {0.0}
