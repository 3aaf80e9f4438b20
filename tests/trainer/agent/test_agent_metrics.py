"""The metrics that a worker pod exposes."""

from __future__ import annotations

import math
import os
import re
import time
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from regroup_trainer.agent.agent_metrics import AgentMetrics
from regroup_trainer.protocol.agent_messages import RankExit
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord, MemberRecord
from regroup_trainer.protocol.rank_messages import (
    Busy,
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


def samples(metrics: AgentMetrics) -> list[Sample]:
    """All series of the ranks."""
    return [one for family in metrics.registries[0].collect() for one in family.samples]


def of_rank(metrics: AgentMetrics, name: str, **labels: str) -> float | None:
    """The value of a series; None where there is none."""
    wanted = {"namespace": "default", "trainingjob": "gpt", **labels}
    found = [s.value for s in samples(metrics) if (s.name, s.labels) == (name, wanted)]
    return found[0] if found else None


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


def test_a_rate_is_of_tokens_or_of_samples_and_never_of_both() -> None:
    language, images, script = make_metrics(0), make_metrics(0), make_metrics(0)
    language.note(progress(10, tokens_per_second=50.0))
    images.note(progress(10, tokens_per_second=7.0, counts_samples=True))
    script.note(progress(10, tokens=0, counts_samples=True))
    tokens, samples = "trainingjob_tokens_per_second", "trainingjob_samples_per_second"
    assert (series(language)[tokens].value, series(images)[samples].value) == (50, 7)
    assert samples not in series(language)
    assert tokens not in series(images)
    assert not {tokens, samples} & set(series(script)), "it counts neither"


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
    stage = {"namespace": "default", "trainingjob": "gpt", "stage": "write"}
    failures = "trainingjob_checkpoint_failures_total"
    assert metrics.registries[1].get_sample_value(failures, stage) == 1
    assert found["trainingjob_evaluation_loss"].value == 1.25


def test_the_steps_in_all_of_a_script_are_those_that_it_reports() -> None:
    desired = RECORD.desired.model_copy(update={"script": ("train.py",)})
    metrics = AgentMetrics("default", "gpt")
    metrics.begin(RECORD.model_copy(update={"desired": desired}), range(1))
    assert series(metrics)["trainingjob_target_steps"].value == 0
    metrics.note(progress(3, total_steps=30))
    assert series(metrics)["trainingjob_target_steps"].value == 30


def test_the_time_in_collectives_survives_a_restart_of_the_rank() -> None:
    metrics = make_metrics(0)
    metrics.note(progress(10, collective_seconds={"gradients": 3.0, "commit": 0.5}))
    metrics.begin(RECORD, range(1))
    metrics.note(progress(12, collective_seconds={"gradients": 1.0, "commit": 0.25}))
    name = "trainingjob_rank_collective_seconds_total"
    assert of_rank(metrics, name, rank="0", op="gradients") == 4.0
    assert of_rank(metrics, name, rank="0", op="commit") == 0.75


def test_a_heartbeat_is_the_last_report_and_none_is_due_of_a_rank_that_is_busy_or_has_ended() -> (
    None
):
    metrics = make_metrics(0, 1)
    name, before = "trainingjob_rank_heartbeat_timestamp_seconds", time.time()
    metrics.note(progress(1))
    metrics.note(progress(1, rank=1))
    at = of_rank(metrics, name, rank="0")
    assert at is not None
    assert before <= at <= time.time()
    metrics.note(Busy(generation=NUMBER, rank=0, doing="evaluation", step=1, lasting=True))
    metrics.note(RankExit(generation=NUMBER, rank=1, exit_code=1, cause="error"))
    assert of_rank(metrics, name, rank="0") is of_rank(metrics, name, rank="1") is None
    metrics.note(progress(2))
    assert of_rank(metrics, name, rank="0") is not None
    metrics.begin(RECORD, range(1))
    assert of_rank(metrics, name, rank="0") is None


def test_memory_is_that_of_the_running_process_and_what_the_rank_says_of_its_gpu() -> None:
    processes = {0: os.getpid(), 1: 2**22 + 1}
    metrics = AgentMetrics("default", "gpt", lambda: processes)
    metrics.begin(RECORD, range(2))
    metrics.note(progress(1, memory_bytes={"gpu": 70, "gpu_available": 10}))
    name = "trainingjob_rank_memory_bytes"
    assert (of_rank(metrics, name, rank="0", kind="host") or 0) > 2**20
    assert (of_rank(metrics, name, rank="0", kind="host_available") or 0) > 2**20
    assert of_rank(metrics, name, rank="0", kind="gpu") == 70
    assert of_rank(metrics, name, rank="0", kind="gpu_available") == 10
    assert of_rank(metrics, name, rank="1", kind="host") is None, "there is no such process"


def of_ranks(count: int, **desired: object) -> list[AgentMetrics]:
    """The metrics of all workers of a job, with eight ranks each that train."""
    members = tuple(
        MemberRecord(member=f"m{n}", index=n, pod="p", node="a", first_rank=8 * n, ranks=8)
        for n in range(count // 8)
    )
    record = RECORD.model_copy(
        update={"members": members, "desired": RECORD.desired.model_copy(update=desired)}
    )
    return [worker_of(record, member.own_ranks) for member in members]


def worker_of(record: GenerationRecord, ranks: range) -> AgentMetrics:
    metrics = AgentMetrics("default", "gpt", lambda: dict.fromkeys(ranks, os.getpid()))
    metrics.begin(record, ranks)
    for rank in ranks:
        memory = {"gpu": 10 + rank, "gpu_available": 90 - rank}
        measured = {"compute_seconds": 0.1, "collective_seconds": {"gradients": 2.0, "commit": 1.0}}
        waits = {"seconds": {"data_wait": 0.5}, "memory_bytes": memory}
        metrics.note(progress(5 + rank, rank=rank, **measured, **waits))
    return metrics


@pytest.mark.parametrize(
    ("ranks", "detail", "each"),
    [
        (256, "auto", 8 * (14 + 9)),
        (512, "auto", 9),
        (512, "full", 8 * (14 + 9)),
        (16, "summary", 9),
    ],
)
def test_the_series_of_a_large_job_do_not_grow_with_its_ranks(
    ranks: int, detail: str, each: int
) -> None:
    """A histogram has 14 series, and a rank 9 others."""
    workers = of_ranks(ranks, rank_detail=detail)
    assert sum(len(samples(worker)) for worker in workers) == ranks // 8 * each


def test_a_rank_that_runs_elsewhere_now_has_no_series_here() -> None:
    metrics = make_metrics(0)
    measured: dict[str, Any] = {"compute_seconds": 0.1, "collective_seconds": {"commit": 1.0}}
    metrics.note(progress(1, seconds={"data_wait": 1.0}, **measured))
    metrics.begin(RECORD, range(1, 2))
    assert samples(metrics) == []
    metrics.begin(RECORD, range(1))
    assert of_rank(metrics, "trainingjob_rank_data_wait_seconds_total", rank="0") == 1.0


def test_a_summary_is_of_all_ranks_of_the_worker() -> None:
    (worker,) = of_ranks(8, rank_detail="summary")
    prefix, memory = "trainingjob_rank_", "trainingjob_rank_memory_bytes"
    assert of_rank(worker, f"{prefix}step") == 5
    assert of_rank(worker, f"{prefix}data_wait_seconds_total") == 4.0
    assert of_rank(worker, f"{prefix}collective_seconds_total", op="commit") == 8.0
    assert of_rank(worker, memory, kind="gpu") == 17
    assert of_rank(worker, memory, kind="gpu_available") == 83
    alone = of_rank(worker_of(RECORD, range(1)), memory, rank="0", kind="host")
    assert (of_rank(worker, memory, kind="host") or 0) > 4 * (alone or math.inf)
    assert of_rank(worker, f"{prefix}heartbeat_timestamp_seconds") is not None


def test_counters_with_known_labels_begin_at_zero() -> None:
    metrics = make_metrics(0)
    text = generate_latest(metrics.registries[1]).decode()
    for stage in ("write", "publish", "prune"):
        assert re.search(rf'checkpoint_failures_total{{.*stage="{stage}".*}} 0', text)
    assert "_created" not in text
