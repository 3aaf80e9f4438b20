"""The Grafana dashboard "Job": the state and history of one TrainingJob.

The queries are in `demo.queries`, and the types of panels are in `demo.panels`.
"""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.models.common import StackingMode

from demo import queries
from demo.panels import (
    SOURCE,
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
    figure_panel,
    filled,
    heat_panel,
    phase_panel,
    table_panel,
    timeline_panel,
    variable,
)

RATE_TEXT = "Tokens that all ranks train on per second, or samples where each has one loss."
FIGURES = (
    Figure(
        "Progress",
        "Committed steps as a share of the target.",
        queries.PROGRESS,
        "percentunit",
        decimals=0,
        steps=((None, "blue"), (1, "green")),
    ),
    Figure(
        "Loss",
        "Mean loss per token of the last step, nats.",
        queries.newest("loss"),
        "none",
        decimals=3,
        steps=((None, "text"),),
    ),
    Figure(
        "Throughput",
        RATE_TEXT,
        queries.RATE,
        "short",
        decimals=1,
        steps=((None, "text"),),
        legend="{{unit}}",
        named=True,
    ),
    Figure(
        "World size",
        "Ranks that train together now.",
        queries.newest("world_size"),
        "none",
        decimals=0,
        steps=((None, "#8e8e99"), (1, "blue")),
    ),
    Figure(
        "Restarts",
        "Unplanned ends of a generation, all causes.",
        queries.RESTARTS,
        "none",
        decimals=0,
        steps=((None, "green"), (1, "yellow"), (10, "red")),
    ),
    Figure(
        "Goodput",
        "Share of all time that went into steps that count.",
        queries.GOODPUT,
        "percentunit",
        decimals=0,
        steps=((None, "red"), (0.5, "yellow"), (0.8, "green")),
    ),
    Figure(
        "Checkpoint age",
        "Time since the newest whole checkpoint.",
        queries.CHECKPOINT_AGE,
        "s",
        decimals=0,
        steps=((None, "green"), (600, "yellow"), (1800, "red")),
    ),
)
DASHED = (("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}), ("custom.fillOpacity", 0))
STAIRS = (("custom.lineInterpolation", "stepAfter"),)
CHARTS = (
    (
        Chart(
            "Loss",
            "Mean loss per token: of every step, and on the held-out part.",
            (
                Series(queries.newest("loss"), "training", "blue"),
                Series(queries.newest("evaluation_loss"), "held out", "orange", STAIRS),
            ),
            "none",
            decimals=2,
        ),
        Place(0, 9, 12, 8),
    ),
    (
        Chart(
            "Throughput",
            RATE_TEXT,
            (Series(queries.RATE, "{{unit}}"),),
            "short",
            minimum=0,
            fill=15,
            calcs=("lastNotNull", "mean"),
            colors=(("tokens/s", "green"), ("samples/s", "green")),
        ),
        Place(12, 9, 12, 8),
    ),
    (
        Chart(
            "Workers",
            "Desired and ready pods, and the ranks of the current generation.",
            (
                Series(queries.newest("world_size"), "world size", "blue"),
                Series(queries.workers("ready"), "ready", "green", (("custom.fillOpacity", 0),)),
                Series(queries.workers("desired"), "desired", "#8e8e99", DASHED),
                Series(queries.workers("min"), "minimum", "red", DASHED),
            ),
            "none",
            decimals=0,
            minimum=0,
            step_line=True,
            fill=20,
        ),
        Place(0, 17, 8, 8),
    ),
    (
        Chart(
            "Steps",
            "Steps committed and steps in a checkpoint. The gap is the work at risk.",
            (
                Series(queries.newest("step"), "committed", "blue"),
                Series(
                    queries.CHECKPOINT_STEP,
                    "in a checkpoint",
                    "green",
                    (("custom.fillOpacity", 15), *STAIRS),
                ),
                Series(queries.newest("target_steps"), "target", "#8e8e99", DASHED),
            ),
            "none",
            decimals=0,
            minimum=0,
        ),
        Place(8, 17, 8, 8),
    ),
    (
        Chart(
            "Where the time goes",
            "Share of each second by phase.",
            (Series(queries.TIME_SHARE, "{{phase}}"),),
            "percentunit",
            decimals=0,
            stacked=StackingMode.PERCENT,
            fill=75,
            calcs=(),
            colors=TIME_COLORS,
        ),
        Place(16, 17, 8, 8),
    ),
    (
        Chart(
            "Checkpoint age",
            "Time since the newest whole checkpoint.",
            (Series(queries.CHECKPOINT_AGE, "age", "purple"),),
            "s",
            minimum=0,
            fill=20,
            calcs=("max",),
        ),
        Place(12, 25, 6, 8),
    ),
    (
        Chart(
            "Gradient norm",
            "Before clipping.",
            (Series(queries.newest("gradient_norm"), "norm", "yellow"),),
            "none",
            decimals=2,
            minimum=0,
        ),
        Place(18, 25, 6, 8),
    ),
    (
        Chart(
            "Learning rate",
            "Of the last step.",
            (Series(queries.newest("learning_rate"), "learning rate", "blue"),),
            "none",
            minimum=0,
        ),
        Place(4, 33, 7, 8),
    ),
    (
        Chart(
            "Model FLOPs utilization",
            "Operations of the model per second over the peak of the GPUs. No data where the peak "
            "is not known: the variable REGROUP_PEAK_TFLOPS of the workers gives it.",
            (Series(queries.newest("mfu_ratio"), "MFU", "green"),),
            "percentunit",
            minimum=0,
            calcs=("lastNotNull", "mean"),
        ),
        Place(11, 33, 7, 8),
    ),
    (
        Chart(
            "Restarts by cause",
            "Recoveries so far. A resize was wanted.",
            (Series(queries.RESTARTS_BY_CAUSE, "{{cause}}"),),
            "none",
            decimals=0,
            minimum=0,
            step_line=True,
        ),
        Place(18, 33, 6, 8),
    ),
    (
        Chart(
            "GPU time by use",
            "Share of the time of all GPUs: in steps that count, in steps that were done again, "
            "and all else.",
            (Series(queries.GPU_TIME, "{{use}}"),),
            "percentunit",
            decimals=0,
            stacked=StackingMode.PERCENT,
            fill=75,
            calcs=(),
            colors=(("useful", "green"), ("lost", "red"), ("waiting", "yellow")),
        ),
        Place(12, 41, 6, 8),
    ),
    (
        Chart(
            "Waiting within a step",
            "Of the rank that waits most: share of each second for data, and for other ranks in "
            "collectives.",
            (
                Series(queries.DATA_WAIT, "data", "yellow"),
                Series(queries.COLLECTIVES, "{{op}}"),
            ),
            "percentunit",
            minimum=0,
        ),
        Place(18, 41, 6, 8),
    ),
    (
        Chart(
            "Memory",
            "Of the rank that uses most, and of the one to which least is left.",
            (
                Series(queries.MEMORY_USED, "{{kind}}"),
                Series(queries.MEMORY_LEFT, "{{kind}}"),
            ),
            "bytes",
            minimum=0,
        ),
        Place(0, 49, 8, 8),
    ),
    (
        Chart(
            "Time of a checkpoint",
            "Mean of ten minutes: while training stood still for it, and in all.",
            (Series(queries.CHECKPOINT_SECONDS, "{{mode}}"),),
            "s",
            minimum=0,
        ),
        Place(8, 49, 8, 8),
    ),
    (
        Chart(
            "Size of a checkpoint",
            "Of the newest whole checkpoint.",
            (Series(queries.CHECKPOINT_SIZE, "size", "purple"),),
            "bytes",
            minimum=0,
        ),
        Place(16, 49, 8, 8),
    ),
)
SMALL_FIGURES = (
    (
        Figure(
            "Detection",
            "Mean time from the last heartbeat of a lost worker to its detection, over all "
            "coordinators that acted in the time that is shown.",
            queries.DETECTION,
            "s",
            decimals=2,
            steps=((None, "green"), (3, "yellow"), (10, "red")),
        ),
        Place(8, 25, 4, 4),
    ),
    (
        Figure(
            "Lost steps",
            "Steps that had to be repeated.",
            queries.LOST_STEPS,
            "none",
            decimals=0,
            steps=((None, "green"), (1, "yellow"), (1000, "red")),
        ),
        Place(8, 29, 4, 4),
    ),
    (
        Figure(
            "Time left",
            "Until the target, at the pace of the last ten minutes.",
            queries.SECONDS_LEFT,
            "s",
            decimals=1,
            steps=((None, "text"),),
        ),
        Place(0, 33, 4, 4),
    ),
    (
        Figure(
            "Wasted GPU time",
            "Over the time that is shown: of all GPUs, in steps that were done again and in no "
            "step.",
            queries.GPU_TIME_WASTED,
            "s",
            decimals=1,
            steps=((None, "text"),),
        ),
        Place(0, 37, 4, 4),
    ),
)


RECOVERIES = Table(
    "Recoveries",
    "Time from the last step before a failure to the first step after it.",
    (("cause", "Cause"), ("restored_from", "Restored from")),
    (
        Column("Count", queries.RECOVERIES),
        Column("Mean", queries.RECOVERY_MEAN, "s", decimals=1),
        Column("90th pct.", queries.RECOVERY_P90, "s", decimals=1),
    ),
)


def panels() -> list[Panel]:
    """All panels in reading order."""
    built: list[Panel] = [phase_panel(Place(0, 0, 3, 4))]
    built += [
        figure_panel(figure, Place(3 * column, 0, 3, 4)) for column, figure in enumerate(FIGURES, 1)
    ]
    built.append(timeline_panel(Place(0, 4, 24, 5)))
    built += [chart_panel(chart, place) for chart, place in CHARTS[:5]]
    built.append(table_panel(RECOVERIES, Place(0, 25, 8, 8)))
    built += [figure_panel(figure, place) for figure, place in SMALL_FIGURES]
    built += [chart_panel(chart, place) for chart, place in CHARTS[5:]]
    built.append(heat_panel(Place(0, 41, 12, 8)))
    return built


def build() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    jobs = 'label_values(trainingjob_status_phase{namespace="$namespace"}, trainingjob)'
    namespaces = "label_values(trainingjob_status_phase, namespace)"
    board = board_of("Job", "One TrainingJob: its progress, its speed and the cost of its faults.")
    board.time("now-1h", "now").refresh("10s").variables(
        [
            SOURCE_VARIABLE,
            variable("namespace", "Namespace", namespaces),
            variable("trainingjob", "Job", jobs),
        ]
    )
    annotation = (
        boards.AnnotationQuery()
        .name("New generation")
        .datasource(SOURCE)
        .enable(True)
        .icon_color("orange")
    )
    board.annotation(annotation.expr(queries.GENERATION_CHANGED))
    return filled(board, panels())
