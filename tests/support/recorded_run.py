"""The metrics of an imaginary run with a fault, of a job that waits and of the operator, put into a
real Prometheus' storage: history without waiting.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

from demo.history import replay
from demo.prometheus import Prometheus

SECONDS = 100
LOST = 40
"""Second in which a node dies."""
BACK = 46
"""Second in which training goes on with two."""
THREE = 62
"""Second in which the third worker is back."""
JOB = 'namespace="demo",trainingjob="gpt-demo"'
BUCKETS = (1, 2.5, 5, 10, 30, math.inf)


def phase_at(second: int) -> str:
    """The job's phase at a second of the run."""
    if second < 4:
        return "Pending" if second < 2 else "Starting"
    if LOST + 2 <= second < BACK:
        return "Recovering"
    if THREE - 2 <= second < THREE:
        return "Resizing"
    return "Running" if second < SECONDS - 4 else "Succeeded"


def step_at(second: int) -> int:
    """Committed steps, falling back to the checkpoint of step 320 after the loss."""
    if second < 4:
        return 0
    if second < BACK:
        return min(second, LOST) * 10 - 40
    return min(800, 320 + (second - BACK) * 10)


def ranks_at(second: int) -> int:
    """Ranks in the generation; 0 before the first one."""
    return 0 if second < 4 else 2 if BACK <= second < THREE else 3


def samples(second: int, rng: random.Random) -> Iterator[tuple[str, str, float]]:
    """Name, further labels and value of every series at a second of the run."""
    phase, step, lost = phase_at(second), step_at(second), second >= LOST
    for name in (
        "Pending",
        "Starting",
        "Running",
        "Recovering",
        "Resizing",
        "Suspended",
        "Succeeded",
        "Failed",
    ):
        yield "status_phase", f'phase="{name}"', float(name == phase)
    ready = 3 if second > 3 and not LOST + 2 <= second < THREE - 4 else 2
    for state, number in (("desired", 3), ("ready", ready), ("min", 2), ("max", 3)):
        yield "workers", f'state="{state}"', number
    yield "restarts_total", 'cause="infrastructure"', float(lost)
    yield "restarts_total", 'cause="resize"', float(second >= THREE)
    yield "lost_steps_total", "", 40.0 * lost
    yield "lost_work_seconds_total", "", 4.0 * (second >= BACK)
    yield "generation", "", 1 + (second >= BACK) + (second >= THREE)
    yield "world_size", "", ranks_at(second)
    yield from time_split(second)
    for use, share in (("useful", 0.9), ("lost", 0.02), ("waiting", 0.08)):
        yield "gpu_seconds_total", f'use="{use}"', 3 * share * second
    if second >= BACK:
        yield from histogram("detection_seconds", 'cause="infrastructure"', 2.05)
        yield from histogram(
            "recovery_seconds", 'cause="infrastructure",restored_from="Checkpoint"', 5.8
        )
    if second >= THREE:
        yield from histogram("recovery_seconds", 'cause="resize",restored_from="Checkpoint"', 0.9)
    if second >= 4 and not LOST <= second < BACK:
        yield from training(second, step, rng)
        yield from ranks(second, ranks_at(second))


def training(second: int, step: int, rng: random.Random) -> Iterator[tuple[str, str, float]]:
    """What rank 0 reports: name, further labels and value of each series."""
    loss = 1.6 + 4 * math.exp(-step / 120)
    yield "step", "", step
    yield "target_steps", "", 800
    yield "loss", "", loss + rng.gauss(0, 0.03)
    yield "evaluation_loss", "", 1.65 + 4 * math.exp(-(step // 100 * 100) / 120)
    yield "gradient_norm", "", 0.4 + 2 * math.exp(-step / 80) + abs(rng.gauss(0, 0.05))
    yield "tokens_per_second", "", (31000 if ranks_at(second) == 3 else 27000) + rng.gauss(0, 500)
    yield "checkpoint_last_step", "", step // 80 * 80
    yield "checkpoint_last_success_timestamp_seconds", "", second - second % 8
    yield "checkpoint_last_size_bytes", "", 14_500_000
    yield "learning_rate", "", 3e-4 * min(1, step / 100)
    yield "mfu_ratio", "", 0.4 + rng.gauss(0, 0.01)
    for mode, seconds in (("blocking", 0.02), ("background", 1.5)):
        saves = step // 80
        yield "checkpoint_save_seconds_sum", f'mode="{mode}"', seconds * saves
        yield "checkpoint_save_seconds_count", f'mode="{mode}"', saves


def ranks(second: int, count: int) -> Iterator[tuple[str, str, float]]:
    """What each rank reports; rank 1 computes half as long again as the others."""
    for rank in range(count):
        own = f'rank="{rank}"'
        slow = 1.5 if rank == 1 else 1.0
        yield "rank_compute_seconds_sum", own, 0.05 * slow * 10 * second
        yield "rank_compute_seconds_count", own, 10 * second
        yield "rank_data_wait_seconds_total", own, 0.02 * second
        yield "rank_collective_seconds_total", f'{own},op="gradients"', 0.1 * second / slow
        yield "rank_memory_bytes", f'{own},kind="host"', 2e9
        yield "rank_memory_bytes", f'{own},kind="host_available"', 6e9


def time_split(second: int) -> Iterator[tuple[str, str, float]]:
    """Seconds spent by phase so far."""
    spent = dict.fromkeys(
        ("startup", "rendezvous", "step", "data_wait", "checkpoint_save", "idle"), 0.0
    )
    for past in range(second + 1):
        if past < 4:
            spent["startup"] += 1
        elif LOST <= past < BACK or THREE - 1 <= past < THREE:
            spent["rendezvous"] += 1
        else:
            spent["step"] += 0.9
            spent["checkpoint_save"] += 0.08
            spent["data_wait"] += 0.02
    for phase, seconds in spent.items():
        yield "time_seconds_total", f'phase="{phase}"', seconds


def histogram(name: str, labels: str, seconds: float) -> Iterator[tuple[str, str, float]]:
    """The series of a histogram that has one observation, of so many seconds."""
    for bound in BUCKETS:
        shown = "+Inf" if math.isinf(bound) else str(bound)
        yield f"{name}_bucket", f'{labels},le="{shown}"', float(seconds <= bound)
    yield f"{name}_sum", labels, seconds
    yield f"{name}_count", labels, 1.0


def waiting_job() -> Iterator[tuple[str, str, float]]:
    """Name, all labels and value of the series of a job for which there is no room."""
    job = 'namespace="research",trainingjob="bert"'
    yield "trainingjob_status_phase", f'{job},phase="Pending"', 1.0
    yield "trainingjob_waiting", f'{job},reason="Unschedulable"', 1.0


def operator(second: int) -> Iterator[tuple[str, str, float]]:
    """Name, all labels and value of the series of an operator whose leader is replaced."""
    rounds = 2.0 * second
    for instance, leads in (("a", second < LOST), ("b", second >= LOST)):
        here = f'instance="{instance}"'
        yield "leader_election_master_status", f'{here},name="regroup"', float(leads)
        yield "trainingjob_internal_errors_total", here, 0.0
        yield "process_resident_memory_bytes", here, 90e6 + 1e4 * second
        yield "process_cpu_seconds_total", here, 0.05 * second
    here, ours = 'instance="a"', 'instance="a",controller="trainingjob"'
    queue = 'instance="a",name="trainingjob"'
    yield "workqueue_depth", queue, 1.0
    yield "controller_runtime_reconcile_errors_total", ours, float(second >= LOST)
    yield "controller_runtime_reconcile_total", f'{ours},result="success"', rounds
    yield "controller_runtime_reconcile_total", f'{ours},result="error"', float(second >= LOST)
    yield "rest_client_requests_total", f'{here},method="GET",code="200"', 3 * rounds
    yield "reflector_lists_total", f'{here},name="pods"', 1.0
    yield "reflector_unreadable_objects_total", f'{here},name="pods"', 0.0
    for bound in (0.01, 0.1, math.inf):
        within = f'le="{"+Inf" if math.isinf(bound) else bound}"'
        count = rounds if bound > 0.01 else 0.7 * rounds
        yield "controller_runtime_reconcile_time_seconds_bucket", f"{ours},{within}", count
        yield "workqueue_queue_duration_seconds_bucket", f"{queue},{within}", count


def series_at(second: int, start: float, rng: random.Random) -> Iterator[tuple[str, str, float]]:
    """Name, all labels and value of everything at a second of the run."""
    for name, labels, value in samples(second, rng):
        absolute = value + start if name.endswith("timestamp_seconds") else value
        yield f"trainingjob_{name}", ",".join(filter(None, (JOB, labels))), absolute
    yield from waiting_job()
    yield from operator(second)


def open_metrics(start: float) -> str:
    """The whole run in the OpenMetrics format, from `start` (seconds since the epoch)."""
    rng = random.Random(0)
    lines = [
        f"{name}{{{labels}}} {value} {start + second}"
        for second in range(SECONDS)
        for name, labels, value in series_at(second, start, rng)
    ]
    return "\n".join([*sorted(lines, key=lambda line: line.split("{")[0]), "# EOF", ""])


def record(folder: Path, start: float) -> Prometheus:
    """A running Prometheus that holds the run's history, begun at `start`."""
    return replay(open_metrics(start), folder)
