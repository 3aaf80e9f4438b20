"""The panel types of our Grafana dashboards. A small description makes each panel."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import common as widgets
from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.builders import stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from demo import queries

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
SOURCE_VARIABLE = boards.DatasourceVariable("datasource").label("Data source").type("prometheus")
Panel = stat.Panel | statetimeline.Panel | table.Panel | timeseries.Panel
PHASE_COLORS = {
    "Pending": "#8e8e99",
    "Starting": "blue",
    "Running": "green",
    "Recovering": "red",
    "Resizing": "purple",
    "Suspended": "yellow",
    "Succeeded": "semi-dark-green",
    "Failed": "dark-red",
}
TIME_COLORS = (
    ("step", "green"),
    ("data_wait", "yellow"),
    ("checkpoint_save", "purple"),
    ("checkpoint_restore", "dark-purple"),
    ("evaluation", "orange"),
    ("startup", "blue"),
    ("rendezvous", "red"),
    ("pending", "#8e8e99"),
    ("idle", "#5a5a66"),
)
PanelBuilder = TypeVar(
    "PanelBuilder", stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel
)


def board_of(name: str, description: str) -> boards.Dashboard:
    """An empty dashboard of the name `Regroup / <name>`."""
    board = boards.Dashboard(f"Regroup / {name}").uid(f"regroup-{name.lower()}")
    board.description(description).tags(["regroup", "training"]).timezone("browser")
    return board.tooltip(models.DashboardCursorSync.CROSSHAIR).readonly()


def variable(name: str, label: str, query: str) -> boards.QueryVariable:
    """A variable whose values a query of Grafana's data source finds."""
    found = boards.QueryVariable(name).label(label).query(query).datasource(SOURCE)
    found.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return found.sort(models.VariableSort.ALPHABETICAL_ASC)


def filled(board: boards.Dashboard, panels: Iterable[Panel]) -> dict[str, Any]:
    """The dashboard with its panels, numbered from 1, in Grafana's JSON model."""
    for number, panel in enumerate(panels, 1):
        board.with_panel(panel.id(number))
    decoded: dict[str, Any] = json.loads(json.dumps(board.build(), cls=JSONEncoder))
    return decoded


@dataclass(frozen=True)
class Place:
    """Where a panel lies on Grafana's grid of 24 columns."""

    x: int
    y: int
    w: int
    h: int


@dataclass(frozen=True)
class Series:
    """One query of a panel and the legend of its result."""

    expression: str
    legend: str
    color: str | None = None
    style: tuple[tuple[str, object], ...] = ()
    """Further field overrides: Grafana's property id and value."""


def target(letter: str, expression: str, legend: str) -> Dataquery:
    """A range query."""
    return (
        Dataquery().datasource(SOURCE).ref_id(letter).expr(expression).legend_format(legend).range()
    )


def instant(letter: str, expression: str) -> Dataquery:
    """A query for the current values, as a table."""
    query = Dataquery().datasource(SOURCE).ref_id(letter).expr(expression).instant()
    return query.format(PromQueryFormat.TABLE).legend_format("")


def thresholds(*steps: tuple[float | None, str]) -> boards.ThresholdsConfig:
    """Absolute thresholds; the first has no value."""
    return (
        boards.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value, color) for value, color in steps])
    )


def property_of(name: str, value: object) -> models.DynamicConfigValue:
    """A property in a field override."""
    return models.DynamicConfigValue(name, value)


def titled(panel: PanelBuilder, title: str, description: str, place: Place) -> PanelBuilder:
    """Set the properties that every panel has, and return the panel."""
    panel.title(title).description(description).datasource(SOURCE)
    panel.grid_pos(models.GridPos(h=place.h, w=place.w, x=place.x, y=place.y))
    return panel


@dataclass(frozen=True)
class Figure:
    """A stat panel: one number, large."""

    title: str
    description: str
    expression: str
    unit: str = "short"
    decimals: int | None = None
    steps: tuple[tuple[float | None, str], ...] = ((None, "green"),)
    spark: bool = False
    legend: str = ""
    named: bool = False
    """Whether the legend is shown beside the number."""


def figure_panel(figure: Figure, place: Place) -> stat.Panel:
    """A stat panel that shows the last value."""
    panel = titled(stat.Panel(), figure.title, figure.description, place)
    panel.with_target(target("A", figure.expression, figure.legend)).unit(figure.unit)
    panel.thresholds(thresholds(*figure.steps)).color_scheme(
        boards.FieldColor().mode(models.FieldColorModeId.THRESHOLDS)
    )
    panel.reduce_options(widgets.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.graph_mode(
        common.BigValueGraphMode.AREA if figure.spark else common.BigValueGraphMode.NONE
    )
    panel.color_mode(common.BigValueColorMode.VALUE)
    if figure.named:
        panel.text_mode(common.BigValueTextMode.VALUE_AND_NAME)
    return panel if figure.decimals is None else panel.decimals(figure.decimals)


def phase_panel(place: Place) -> stat.Panel:
    """The name of the current phase in its colour."""
    figure = Figure("Phase", "The job's `status.phase`.", queries.PHASE, legend="{{phase}}")
    panel = figure_panel(figure, place).text_mode(common.BigValueTextMode.NAME)
    for phase, shade in PHASE_COLORS.items():
        panel.override_by_name(
            phase, [property_of("color", {"mode": "fixed", "fixedColor": shade})]
        )
    return panel.reduce_options(widgets.ReduceDataOptions().calcs(["last"]))


@dataclass(frozen=True)
class Chart:
    """A time series panel."""

    title: str
    description: str
    series: tuple[Series, ...]
    unit: str = "short"
    decimals: int | None = None
    minimum: float | None = None
    step_line: bool = False
    fill: int = 8
    stacked: common.StackingMode | None = None
    """PERCENT: shares of the sum; NORMAL: the sum itself. In both, areas without lines."""
    calcs: tuple[str, ...] = ("lastNotNull",)
    colors: tuple[tuple[str, str], ...] = ()
    """Colours for the series of one query, by their names."""
    connect: bool = False


def chart_panel(chart: Chart, place: Place) -> timeseries.Panel:
    """Lines over time, with a legend table below."""
    panel = titled(timeseries.Panel(), chart.title, chart.description, place).unit(chart.unit)
    for letter, series in zip("ABCDEFGH", chart.series, strict=False):
        panel.with_target(target(letter, series.expression, series.legend))
        if properties := list(overrides(series)):
            panel.override_by_name(series.legend, properties)
    for name, shade in chart.colors:
        panel.override_by_name(name, [property_of("color", {"mode": "fixed", "fixedColor": shade})])
    panel.color_scheme(
        boards.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC)
    ).line_width(2).fill_opacity(chart.fill)
    panel.show_points(common.VisibilityMode.NEVER).span_nulls(chart.connect)
    panel.legend(legend(chart.calcs)).tooltip(
        widgets.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    )
    if chart.step_line:
        panel.line_interpolation(common.LineInterpolation.STEP_AFTER)
    if chart.stacked:
        panel.stacking(widgets.StackingConfig().mode(chart.stacked)).line_width(0)
    if chart.minimum is not None:
        panel.min(chart.minimum)
    return panel if chart.decimals is None else panel.decimals(chart.decimals)


def overview(figures: tuple[Figure, ...], charts: tuple[Chart, ...]) -> list[Panel]:
    """Six figures beside each other, and rows of two charts below them."""
    shown: list[Panel] = [
        figure_panel(figure, Place(4 * column, 0, 4, 4)) for column, figure in enumerate(figures)
    ]
    for number, chart in enumerate(charts):
        row, column = divmod(number, 2)
        shown.append(chart_panel(chart, Place(12 * column, 4 + 8 * row, 12, 8)))
    return shown


def overrides(series: Series) -> Iterable[models.DynamicConfigValue]:
    """The field properties that a series sets."""
    if series.color:
        yield property_of("color", {"mode": "fixed", "fixedColor": series.color})
    for name, value in series.style:
        yield property_of(name, value)


def legend(calcs: tuple[str, ...]) -> widgets.VizLegendOptions:
    """A legend below the chart. It shows the reduced values named by `calcs`."""
    return (
        widgets.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(list(calcs))
    )


def timeline_panel(place: Place) -> statetimeline.Panel:
    """Phase and world size as coloured bars."""
    panel = titled(
        statetimeline.Panel(),
        "Phase and world size",
        "The job's phase and its number of ranks over time.",
        place,
    )
    panel.with_target(target("A", queries.phase_number(), "Phase"))
    panel.with_target(target("B", queries.newest("world_size"), "World size"))
    names = {
        str(number): models.ValueMappingResult(text=phase, color=PHASE_COLORS[phase], index=number)
        for number, phase in queries.numbered()
    }
    panel.override_by_name("Phase", [property_of("mappings", [models.ValueMap(options=names)])])
    panel.thresholds(thresholds((None, "#8e8e99"), (1, "#1f60c4"), (2, "#3274d9"), (3, "#5794f2")))
    panel.legend(legend(()))
    return bars(panel).decimals(0)


def heat_panel(place: Place) -> statetimeline.Panel:
    """How slow each rank is, as bars that are the redder the slower it is."""
    panel = titled(
        statetimeline.Panel(),
        "Stragglers",
        "Own time of a step of each rank over that of the median rank, of the 16 slowest. All "
        "ranks wait for the slowest. Jobs of more than 256 ranks have no series for each.",
        place,
    )
    panel.with_target(target("A", queries.SLOWNESS, "rank {{rank}}"))
    panel.thresholds(thresholds((None, "green"), (1.2, "yellow"), (1.5, "orange"), (2, "red")))
    panel.legend(legend(()).show_legend(False))
    return bars(panel).decimals(1)


def bars(panel: statetimeline.Panel) -> statetimeline.Panel:
    """With equal values as one bar, in the colours of the thresholds."""
    panel.color_scheme(boards.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
    panel.show_value(common.VisibilityMode.AUTO).merge_values(True).row_height(0.85)
    panel.fill_opacity(80).line_width(0)
    return panel.align_value(common.TimelineValueAlignment.CENTER)


@dataclass(frozen=True)
class Column:
    """A column of a table: the value of a query."""

    title: str
    expression: str
    unit: str = "none"
    decimals: int | None = None


@dataclass(frozen=True)
class Table:
    """A table panel: a row for each set of labels."""

    title: str
    description: str
    labels: tuple[tuple[str, str], ...]
    """Label of the queries, and the title of its column."""
    columns: tuple[Column, ...]


def table_panel(described: Table, place: Place) -> table.Panel:
    """A table of the current values."""
    panel = titled(table.Panel(), described.title, described.description, place)
    names = dict(described.labels)
    for letter, column in zip("ABCDEFGH", described.columns, strict=False):
        panel.with_target(instant(letter, column.expression))
        names[f"Value #{letter}"] = column.title
        if column.decimals is not None:
            unit = property_of("unit", column.unit)
            panel.override_by_name(column.title, [unit, property_of("decimals", column.decimals)])
    panel.with_transformation(models.DataTransformerConfig("merge", options={}))
    order = {name: place for place, name in enumerate(names)}
    organize = {"excludeByName": {"Time": True}, "renameByName": names, "indexByName": order}
    return panel.with_transformation(models.DataTransformerConfig("organize", options=organize))
