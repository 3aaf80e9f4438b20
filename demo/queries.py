"""The Prometheus queries of the Job dashboard. Each queries one fact of the job that the variables
select.

Rank 0 moves between pods, and a coordinator may be replaced. Every query therefore first aggregates
a series over the pods that export it.
"""

from __future__ import annotations

PHASES = (
    "Pending",
    "Starting",
    "Running",
    "Recovering",
    "Resizing",
    "Suspended",
    "Succeeded",
    "Failed",
)
"""Phases of a TrainingJob. The state timeline shows the n-th phase as the number n, from 1."""

JOB = 'namespace="$namespace", trainingjob="$trainingjob"'

NOT_ON_CPUS = frozenset({"trainingjob_mfu_ratio"})
"""Series that a job has only where the peak of its devices is known."""


def newest(series: str, *labels: str) -> str:
    """The value of `trainingjob_<series>` from whichever pod exports it, one for each value of
    `labels`.
    """
    by = f" by ({', '.join(labels)}) " if labels else ""
    return f"max{by}(trainingjob_{series}{{{JOB}}})"


def shown(series: str, *labels: str) -> str:
    """What all operators that acted in the time that is shown have counted of recoveries. Each one
    counts from its own start.
    """
    by = ", ".join(("cause", "restored_from", *labels))
    return f"sum by ({by}) (max_over_time(trainingjob_{series}{{{JOB}}}[$__range]))"


def phase_number() -> str:
    """The index of the phase in `PHASES`, from 1."""
    terms = (
        f'(trainingjob_status_phase{{{JOB}, phase="{phase}"}} == 1) * {number}'
        for number, phase in numbered()
    )
    return f"max({' or '.join(terms)})"


def numbered() -> list[tuple[int, str]]:
    """The phases with their numbers."""
    return list(enumerate(PHASES, 1))


PHASE = f"max by (phase) (trainingjob_status_phase{{{JOB}}} == 1)"
PROGRESS = f"{newest('step')} / {newest('target_steps')}"
RESTARTS = (
    f'sum(max by (cause) (trainingjob_restarts_total{{{JOB}, cause!="resize"}})) or vector(0)'
)
RATE = " or ".join(
    f'label_replace({newest(f"{counted}_per_second")}, "unit", "{counted}/s", "", "")'
    for counted in ("tokens", "samples")
)
"""A job counts one of them, and the label `unit` says which."""
SECONDS = newest("time_seconds_total", "phase")
PRODUCTIVE = f'max(trainingjob_time_seconds_total{{{JOB}, phase="step"}})'
LOST_SECONDS = newest("lost_work_seconds_total")
GOODPUT = f"({PRODUCTIVE} - ({LOST_SECONDS} or vector(0))) / sum({SECONDS})"
CHECKPOINT_AGE = (
    "time() - "
    f"max(max_over_time(trainingjob_checkpoint_last_success_timestamp_seconds{{{JOB}}}[1d]))"
)
CHECKPOINT_STEP = f"max(max_over_time(trainingjob_checkpoint_last_step{{{JOB}}}[1d]))"
TIME_SHARE = (
    f"max by (phase) (rate(trainingjob_time_seconds_total{{{JOB}}}[$__rate_interval])) and on "
    f"(phase) ({SECONDS} > 0)"
)
RECOVERIES = shown("recovery_seconds_count")
RECOVERY_MEAN = f"{shown('recovery_seconds_sum')} / {RECOVERIES}"
RECOVERY_P90 = f"histogram_quantile(0.9, {shown('recovery_seconds_bucket', 'le')})"
NODE_LOST = f'{{{JOB}, cause="infrastructure"}}[$__range]'
DETECTION = (
    f"sum(max_over_time(trainingjob_detection_seconds_sum{NODE_LOST})) / "
    f"(sum(max_over_time(trainingjob_detection_seconds_count{NODE_LOST})) > 0)"
)
"""Of what all coordinators have detected that acted in the time that is shown."""
LOST_STEPS = f"{newest('lost_steps_total')} or vector(0)"
STEPS_LEFT = f"({newest('target_steps')} > 0) - {newest('step')}"
SECONDS_LEFT = f"({STEPS_LEFT}) / (max(deriv(trainingjob_step{{{JOB}}}[10m])) > 0)"
RESTARTS_BY_CAUSE = newest("restarts_total", "cause")
GPU_TIME = f"max by (use) (rate(trainingjob_gpu_seconds_total{{{JOB}}}[$__rate_interval]))"
GPU_TIME_WASTED = (
    f'sum(increase(trainingjob_gpu_seconds_total{{{JOB}, use=~"lost|waiting"}}[$__range]))'
)
CHECKPOINT_SIZE = f"max(max_over_time(trainingjob_checkpoint_last_size_bytes{{{JOB}}}[1d]))"
CHECKPOINT_SECONDS = (
    f"sum by (mode) (increase(trainingjob_checkpoint_save_seconds_sum{{{JOB}}}[10m])) / "
    f"(sum by (mode) (increase(trainingjob_checkpoint_save_seconds_count{{{JOB}}}[10m])) > 0)"
)
OWN_SECONDS = (
    f"max by (rank) (rate(trainingjob_rank_compute_seconds_sum{{{JOB}}}[1m]) / "
    f"(rate(trainingjob_rank_compute_seconds_count{{{JOB}}}[1m]) > 0))"
)
SLOWNESS = f"topk(16, round({OWN_SECONDS} / scalar(quantile(0.5, {OWN_SECONDS})), 0.1))"
MEMORY_USED = f'max by (kind) (trainingjob_rank_memory_bytes{{{JOB}, kind=~"host|gpu"}})'
MEMORY_LEFT = (
    f'min by (kind) (trainingjob_rank_memory_bytes{{{JOB}, kind=~"host_available|gpu_available"}})'
)
DATA_WAIT = f"max(rate(trainingjob_rank_data_wait_seconds_total{{{JOB}}}[$__rate_interval]))"
COLLECTIVES = (
    f"max by (op) (rate(trainingjob_rank_collective_seconds_total{{{JOB}}}[$__rate_interval]))"
)
GENERATION_CHANGED = f"max(changes(trainingjob_generation{{{JOB}}}[$__rate_interval])) > 0"


def workers(state: str) -> str:
    """The number of workers in a state: desired, ready, min or max."""
    return f'max(trainingjob_workers{{{JOB}, state="{state}"}})'
