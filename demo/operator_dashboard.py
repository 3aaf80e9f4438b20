"""The Grafana dashboard "Operator": whether it acts, keeps up and is answered.

Other controllers export series of the same names. The operator is told from them by a series that
only it has.
"""

from __future__ import annotations

from typing import Any

from demo.panels import (
    SOURCE_VARIABLE,
    Chart,
    Figure,
    Series,
    board_of,
    filled,
    overview,
)

OURS = "and on (instance) trainingjob_internal_errors_total"
CONTROLLER = 'controller="trainingjob"'
QUEUE = 'name="trainingjob"'


def rate(series: str, labels: str = "") -> str:
    """Events per second and replica."""
    return f"rate({series}{{{labels}}}[$__rate_interval])"


def quantile(share: float, histogram: str, labels: str) -> str:
    """A quantile of a histogram over all replicas."""
    return f"histogram_quantile({share}, sum by (le) ({rate(f'{histogram}_bucket', labels)}))"


def durations(histogram: str, labels: str) -> tuple[Series, ...]:
    """The usual time and the longest ones of a histogram."""
    return (
        Series(quantile(0.5, histogram, labels), "median", "green"),
        Series(quantile(0.99, histogram, labels), "99th percentile", "orange"),
    )


FIGURES = (
    Figure(
        "Leader",
        "Replicas that lead: one.",
        f"sum(leader_election_master_status {OURS})",
        "none",
        decimals=0,
        steps=((None, "red"), (1, "green"), (2, "red")),
    ),
    Figure(
        "Replicas",
        "Replicas that answer Prometheus.",
        f"count(leader_election_master_status {OURS})",
        "none",
        decimals=0,
        steps=((None, "red"), (1, "yellow"), (2, "green")),
    ),
    Figure(
        "Jobs",
        "TrainingJobs that the operator sees to, ended ones included.",
        "count(max by (namespace, trainingjob) (trainingjob_status_phase == 1))",
        "none",
        decimals=0,
        steps=((None, "text"),),
    ),
    Figure(
        "Waiting keys",
        "Jobs that wait for a round of the operator.",
        f"sum(workqueue_depth{{{QUEUE}}})",
        "none",
        decimals=0,
        steps=((None, "green"), (100, "yellow"), (1000, "red")),
    ),
    Figure(
        "Failed rounds",
        "Rounds that failed since the replicas started. Each is tried again.",
        f"sum(controller_runtime_reconcile_errors_total{{{CONTROLLER}}}) or vector(0)",
        "none",
        decimals=0,
        steps=((None, "green"), (1, "yellow"), (1000, "red")),
    ),
    Figure(
        "Internal errors",
        "Rounds that ended in an error that the operator does not know: report it.",
        "sum(trainingjob_internal_errors_total and on (instance) leader_election_master_status)",
        "none",
        decimals=0,
        steps=((None, "green"), (1, "red")),
    ),
)
CHARTS = (
    Chart(
        "Time of a round",
        "From the begin of a round for one job to its end.",
        durations("controller_runtime_reconcile_time_seconds", CONTROLLER),
        "s",
        minimum=0,
        calcs=("lastNotNull", "max"),
        connect=True,
    ),
    Chart(
        "Time in the queue",
        "How long a job waits for its round.",
        durations("workqueue_queue_duration_seconds", QUEUE),
        "s",
        minimum=0,
        calcs=("lastNotNull", "max"),
        connect=True,
    ),
    Chart(
        "Rounds",
        "Rounds per second, by their result.",
        (
            Series(
                f"sum by (result) ({rate('controller_runtime_reconcile_total', CONTROLLER)})",
                "{{result}}",
            ),
        ),
        "ops",
        minimum=0,
        colors=(("success", "green"), ("error", "red")),
    ),
    Chart(
        "Requests to the API server",
        "Requests per second, by the code of the answer. 0: no answer.",
        (Series(f"sum by (code) ({rate('rest_client_requests_total')} {OURS})", "{{code}}"),),
        "reqps",
        minimum=0,
    ),
    Chart(
        "Who leads",
        "1 while a replica leads. The other one takes over when it ends.",
        (Series(f"max by (instance) (leader_election_master_status {OURS})", "{{instance}}"),),
        "none",
        decimals=0,
        minimum=0,
        step_line=True,
        fill=20,
        calcs=(),
    ),
    Chart(
        "Lists and unreadable objects",
        "Lists of all objects come at a start, and when a watch could not go on.",
        (
            Series("sum by (name) (reflector_lists_total)", "lists: {{name}}"),
            Series(
                "sum(reflector_unreadable_objects_total) or vector(0)", "unreadable objects", "red"
            ),
        ),
        "none",
        decimals=0,
        minimum=0,
        step_line=True,
        fill=0,
    ),
    Chart(
        "Memory",
        "Resident memory of each replica.",
        (Series(f"max by (instance) (process_resident_memory_bytes {OURS})", "{{instance}}"),),
        "bytes",
        minimum=0,
    ),
    Chart(
        "CPU",
        "Cores that each replica uses.",
        (
            Series(
                f"max by (instance) ({rate('process_cpu_seconds_total')} {OURS})", "{{instance}}"
            ),
        ),
        "short",
        decimals=2,
        minimum=0,
    ),
)


def build() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    board = board_of("Operator", "The operator: whether it acts, keeps up and is answered.")
    board.time("now-3h", "now").refresh("30s").variables([SOURCE_VARIABLE])
    return filled(board, overview(FIGURES, CHARTS))
