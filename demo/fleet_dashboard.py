"""The Grafana dashboard "Fleet": all TrainingJobs of the chosen namespaces, what they wait for and
what is lost.
"""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models.common import StackingMode

from demo.panels import (
    PHASE_COLORS,
    SOURCE_VARIABLE,
    TIME_COLORS,
    Chart,
    Column,
    Figure,
    Panel,
    Place,
    Series,
    Table,
    board_of,
    chart_panel,
    filled,
    overview,
    table_panel,
    variable,
)

WHERE = 'namespace=~"$namespace"'
JOB = ("namespace", "trainingjob")


def each(series: str, *labels: str, only: str = "") -> str:
    """A series of each job, from whichever pod exports it: `labels` beside those of the job."""
    selector = ",".join(filter(None, (WHERE, only)))
    return f"max by ({', '.join((*JOB, *labels))}) (trainingjob_{series}{{{selector}}})"


def in_phase(phase: str) -> str:
    """1 for each job of a phase, 0 for the others."""
    return each("status_phase", only=f'phase="{phase}"')


def spent(only: str = "", *, by: str = "") -> str:
    """Seconds of the time that is shown which jobs spent, by the labels `by`."""
    selector = ",".join(filter(None, (WHERE, only)))
    return f"sum{by}(increase(trainingjob_time_seconds_total{{{selector}}}[$__range]))"


def lost(by: str = "") -> str:
    """Seconds of it for steps that were done again."""
    return f"sum{by}(increase(trainingjob_lost_work_seconds_total{{{WHERE}}}[$__range]))"


def wasted(by: str) -> str:
    """Seconds of GPUs for steps that were done again and for no step."""
    selector = f'{WHERE},use=~"lost|waiting"'
    return f"sum{by}(increase(trainingjob_gpu_seconds_total{{{selector}}}[$__range]))"


def failures(by: str) -> str:
    """Recoveries of that time, but for resizes: these were wanted. Each operator that led counts
    from its own start.
    """
    selector = f'{WHERE},cause!="resize"'
    return f"sum{by}(increase(trainingjob_restarts_total{{{selector}}}[$__range]))"


STEP = 'phase="step"'
NOT_SUSPENDED = 'reason!~"Suspended|Suspending"'
BY_JOB = " by (namespace, trainingjob) "
BY_NAMESPACE = " by (namespace) "
ACTIVE = f"{each('status_phase', 'phase')} == 1"
FIGURES = (
    Figure(
        "Training",
        "Jobs in phase Running.",
        f"sum({in_phase('Running')}) or vector(0)",
        "none",
        decimals=0,
        steps=((None, "#8e8e99"), (1, "green")),
    ),
    Figure(
        "Waiting",
        "Jobs that want to train and have a reason why they do not.",
        f"count({each('waiting', only=NOT_SUSPENDED)}) or vector(0)",
        "none",
        decimals=0,
        steps=((None, "green"), (1, "yellow"), (10, "red")),
    ),
    Figure(
        "Ranks",
        "Ranks that train now, one on each GPU.",
        f"sum({each('world_size')}) or vector(0)",
        "none",
        decimals=0,
        steps=((None, "#8e8e99"), (1, "blue")),
    ),
    Figure(
        "Goodput",
        "Share of the jobs' time that went into steps that count.",
        f"({spent(STEP)} - {lost()}) / {spent()}",
        "percentunit",
        decimals=0,
        steps=((None, "red"), (0.5, "yellow"), (0.8, "green")),
    ),
    Figure(
        "Lost work",
        "Time of steps that were done again, over all jobs.",
        lost(),
        "s",
        decimals=0,
        steps=((None, "text"),),
    ),
    Figure(
        "Failed jobs",
        "Jobs in phase Failed that are not deleted yet.",
        f"sum({in_phase('Failed')}) or vector(0)",
        "none",
        decimals=0,
        steps=((None, "green"), (1, "red")),
    ),
)
CHARTS = (
    Chart(
        "Jobs by phase",
        "Jobs that exist, ended ones included.",
        (Series(f"count by (phase) ({ACTIVE})", "{{phase}}"),),
        "none",
        decimals=0,
        minimum=0,
        step_line=True,
        stacked=StackingMode.NORMAL,
        fill=75,
        calcs=("max",),
        colors=tuple(PHASE_COLORS.items()),
    ),
    Chart(
        "Why jobs wait",
        "Jobs that are not ready, by the reason that their status gives.",
        (Series(f"count by (reason) ({each('waiting', 'reason')})", "{{reason}}"),),
        "none",
        decimals=0,
        minimum=0,
        step_line=True,
        stacked=StackingMode.NORMAL,
        fill=75,
        calcs=("max",),
    ),
    Chart(
        "Where the time of all jobs goes",
        "Share of each second by phase. A job counts once, however many GPUs it has.",
        (
            Series(
                "sum by (phase) "
                f"(rate(trainingjob_time_seconds_total{{{WHERE}}}[$__rate_interval]))",
                "{{phase}}",
            ),
        ),
        "percentunit",
        decimals=0,
        stacked=StackingMode.PERCENT,
        fill=75,
        calcs=(),
        colors=TIME_COLORS,
    ),
    Chart(
        "Ranks by namespace",
        "Ranks that train, one on each GPU.",
        (Series(f"sum by (namespace) ({each('world_size')})", "{{namespace}}"),),
        "none",
        decimals=0,
        minimum=0,
        step_line=True,
        stacked=StackingMode.NORMAL,
        fill=75,
    ),
)
NAMESPACES = Table(
    "Namespaces",
    "Over the time that is shown. Wasted GPU time: of all GPUs, in no step that counts. "
    "Waiting: for workers, and between generations. Restarts: after a failure; a resize is none.",
    (("namespace", "Namespace"),),
    (
        Column(
            "Goodput",
            f"({spent(STEP, by=BY_NAMESPACE)} - {lost(BY_NAMESPACE)}) / {spent(by=BY_NAMESPACE)}",
            "percentunit",
            decimals=0,
        ),
        Column("Wasted GPU time", wasted(BY_NAMESPACE), "s", decimals=1),
        Column("Lost work", lost(BY_NAMESPACE), "s", decimals=0),
        Column("Waiting", spent('phase=~"pending|idle"', by=BY_NAMESPACE), "s", decimals=0),
        Column("Restarts", failures(BY_NAMESPACE), decimals=0),
    ),
)
QUEUE = Chart(
    "Queue wait",
    "How long jobs that are Pending have waited within the last six hours: the longest of each "
    "namespace.",
    (
        Series(
            "max by (namespace) ("
            f"60 * sum_over_time({in_phase('Pending')}[6h:1m]) * {in_phase('Pending')})",
            "{{namespace}}",
        ),
    ),
    "s",
    minimum=0,
    calcs=("lastNotNull", "max"),
)
WORST = Table(
    "Worst jobs",
    "The ten jobs with the lowest goodput, and the ten that waste most GPU time, over the time "
    "that is shown.",
    (("namespace", "Namespace"), ("trainingjob", "Job")),
    (
        Column(
            "Goodput",
            f"bottomk(10, ({spent(STEP, by=BY_JOB)} - {lost(BY_JOB)}) / ({spent(by=BY_JOB)} > 0))",
            "percentunit",
            decimals=0,
        ),
        Column("Wasted GPU time", f"topk(10, {wasted(BY_JOB)})", "s", decimals=1),
    ),
)


def panels() -> list[Panel]:
    """All panels in reading order."""
    return [
        *overview(FIGURES, CHARTS),
        chart_panel(QUEUE, Place(0, 20, 24, 7)),
        table_panel(NAMESPACES, Place(0, 27, 14, 9)),
        table_panel(WORST, Place(14, 27, 10, 9)),
    ]


def build() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    namespaces = variable(
        "namespace", "Namespace", "label_values(trainingjob_status_phase, namespace)"
    )
    namespaces.multi(True).include_all(True).all_value(".*")
    board = board_of("Fleet", "All TrainingJobs: what they wait for, and what is lost.")
    board.time("now-24h", "now").refresh("1m").variables([SOURCE_VARIABLE, namespaces])
    return filled(board, panels())
