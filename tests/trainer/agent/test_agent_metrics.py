"""The metrics that a worker pod exposes."""

from __future__ import annotations

import math

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from regroup_trainer.agent.agent_metrics import AgentMetrics
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord
from regroup_trainer.protocol.rank_messages import (
    CheckpointFailed,
    CheckpointSaved,
    Evaluated,
    Progress,
)
from tests.support.generations import make_generation

NUMBER = GenerationNumber(1, 1)
RECORD: GenerationRecord = make_generation(1, 1)


def series(metrics: AgentMetrics) -> dict[str, Sample]:
    """The newest sample of each name."""
    text = b"".join(generate_latest(registry) for registry in metrics.registries).decode()
    return {
        sample.name: sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def progress(step: int, rank: int = 0, **changes: object) -> Progress:
    fields = {
        "generation": NUMBER,
        "rank": rank,
        "step": step,
        "time": 0.0,
        "loss": 2.0,
        "tokens": 100 * step,
    }
    return Progress.model_validate({**fields, **changes})


def make_metrics(*ranks: int) -> AgentMetrics:
    metrics = AgentMetrics("default", "gpt")
    metrics.begin(RECORD, range(ranks[0], ranks[-1] + 1))
    return metrics


def test_the_jobs_series_come_from_the_pod_of_rank_zero_alone() -> None:
    with_zero, without = make_metrics(0), make_metrics(1)
    with_zero.note(progress(3))
    without.note(progress(3, rank=1))
    assert series(with_zero)["trainingjob_loss"].value == 2.0
    assert series(with_zero)["trainingjob_loss"].labels == {
        "namespace": "default",
        "trainingjob": "gpt",
    }
    assert series(with_zero)["trainingjob_target_steps"].value == 100
    assert "trainingjob_loss" not in series(without)
    assert series(without)["trainingjob_rank_step"].labels["rank"] == "1"


def test_counters_do_not_fall_when_steps_are_repeated() -> None:
    metrics = make_metrics(0)
    metrics.note(progress(10, seconds={"data_wait": 1.5}))
    metrics.begin(RECORD, range(1))
    metrics.note(progress(5, seconds={"data_wait": 0.25}))
    found = series(metrics)
    assert found["trainingjob_step"].value == 5
    assert found["trainingjob_tokens_total"].value == 1000
    assert found["trainingjob_rank_data_wait_seconds_total"].value == 1.75


def test_skipped_steps_are_counted_over_generations() -> None:
    metrics = make_metrics(0)
    metrics.note(progress(10, skipped=2))
    metrics.note(progress(11, skipped=2))
    metrics.begin(RECORD, range(1))
    metrics.note(progress(12, skipped=1))
    assert series(metrics)["trainingjob_nonfinite_steps_total"].value == 3


def test_a_loss_that_is_not_finite_shows_as_nan() -> None:
    metrics = make_metrics(0)
    metrics.note(progress(1, loss=None, gradient_norm=None))
    assert math.isnan(series(metrics)["trainingjob_loss"].value)


def test_checkpoints_and_evaluations_are_exposed() -> None:
    metrics = make_metrics(0)
    saved = {"path": "p", "size_bytes": 7, "seconds": 2.0, "blocking_seconds": 0.5, "time": 99.0}
    metrics.note(
        CheckpointSaved.model_validate({"generation": NUMBER, "rank": 0, "step": 20, **saved})
    )
    metrics.note(
        CheckpointFailed(generation=NUMBER, rank=0, step=40, stage="write", error="disk full")
    )
    metrics.note(Evaluated(generation=NUMBER, rank=0, step=40, loss=1.25))
    found = series(metrics)
    assert found["trainingjob_checkpoint_last_step"].value == 20
    assert found["trainingjob_checkpoint_last_success_timestamp_seconds"].value == 99.0
    assert found["trainingjob_checkpoint_last_size_bytes"].value == 7
    assert found["trainingjob_checkpoint_save_seconds_count"].value == 1
    assert found["trainingjob_checkpoint_failures_total"].labels["stage"] == "write"
    assert found["trainingjob_evaluation_loss"].value == 1.25


def test_the_steps_in_all_of_a_script_are_those_that_it_reports() -> None:
    desired = RECORD.desired.model_copy(update={"script": ("train.py",)})
    metrics = AgentMetrics("default", "gpt")
    metrics.begin(RECORD.model_copy(update={"desired": desired}), range(1))
    assert series(metrics)["trainingjob_target_steps"].value == 0
    metrics.note(progress(3, total_steps=30))
    assert series(metrics)["trainingjob_target_steps"].value == 30
