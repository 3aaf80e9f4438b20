"""Draws a time series panel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from demo.picture.data import DrawnSeries
from demo.picture.drawing import Box, label, line, svg, time_axis, width_of
from demo.picture.fields import Field, css, resolve
from demo.picture.units import text, tick_decimals, ticks
from demo.promql import Window

LEGEND_HEIGHT = 26
LEGEND_LINE = 18
AXIS_HEIGHT = 24
CALCS = {"lastNotNull": "Last", "mean": "Mean", "max": "Max", "min": "Min"}
Point = tuple[float, float]
Events = Sequence[tuple[str, list[float]]]
"""Colour and times."""


@dataclass(frozen=True)
class Line:
    """A series with its style and the values below it. `base` is not zero when series are
    stacked.
    """

    field: Field
    values: list[float | None]
    base: list[float]


def draw(
    panel: dict[str, Any],
    series: Sequence[DrawnSeries],
    window: Window,
    size: tuple[float, float],
    events: Events,
) -> str:
    """The body of a panel: axes, lines and legend. Dashed vertical lines mark `events`."""
    width, height = size
    fields = [resolve(panel, one.name, index) for index, one in enumerate(series)]
    mode = fields[0].custom("stacking", {}).get("mode", "none")
    lines = (
        [plain(f, s) for f, s in zip(fields, series, strict=True)]
        if mode == "none"
        else stack(fields, series, shares=mode == "percent")
    )
    marks = [0, 0.25, 0.5, 0.75, 1.0] if mode == "percent" else scale(lines)
    names = axis_labels(marks, fields[0])
    left = max(width_of(name) for name in names) + 14
    below = legend_height(panel, series, width)
    box = Box(left, 6, width - left - 10, height - AXIS_HEIGHT - below - 6)
    rules = (
        line(box.left, y, box.left + box.width, y) + label(box.left - 8, y + 4, name, "end")
        for y, name in (
            (box.y(mark, marks[0], marks[-1]), name)
            for mark, name in zip(marks, names, strict=True)
        )
    )
    drawn = (shape(one, box, (marks[0], marks[-1]), window) for one in reversed(lines))
    body = svg(
        width,
        height - below,
        [*time_axis(box, window), *rules, *drawn, *marks_of(events, box, window)],
    )
    return body + legend(panel, fields, series)


def marks_of(events: Events, box: Box, window: Window) -> Iterable[str]:
    """A dashed line and a small triangle at each event's time."""
    for color, times in events:
        for x in (box.x(time, window) for time in times):
            yield line(x, box.top, x, box.bottom, color, "3 3")
            yield f'<path d="M{x - 5:.1f},{box.bottom + 5:.1f}h10l-5,-6z" fill="{color}"/>'


def plain(field: Field, series: DrawnSeries) -> Line:
    """A line whose base is zero."""
    return Line(field, series.values, [0.0] * len(series.values))


def stack(fields: Sequence[Field], series: Sequence[DrawnSeries], *, shares: bool) -> list[Line]:
    """Stacked lines. As `shares` they add up to 1."""
    totals = [sum(v or 0 for v in at) for at in zip(*(one.values for one in series), strict=True)]
    totals = totals if shares else [1.0] * len(totals)
    base = [0.0] * len(totals)
    lines = []
    for field, one in zip(fields, series, strict=True):
        top = [
            b + (v or 0) / t if t else None
            for b, v, t in zip(base, one.values, totals, strict=True)
        ]
        lines.append(Line(field, top, base))
        base = [b if t is None else t for b, t in zip(base, top, strict=True)]
    return lines


def scale(lines: Sequence[Line]) -> list[float]:
    """The ticks of the value axis. Where values have no decimals, ticks have none."""
    field = lines[0].field
    values = [value for one in lines for value in one.values if value is not None]
    low, high = field.settings.get("min", min(values)), max(values)
    size = size_of(field.unit, high)
    found = [size * tick for tick in ticks(low / size, high / size)]
    if field.unit == "none" and field.decimals == 0 and found[1] - found[0] < 1:
        return [float(tick) for tick in range(math.floor(found[0]), math.ceil(found[-1]) + 1)]
    return found


def size_of(unit: str, high: float) -> float:
    """The unit in which ticks up to `high` are round numbers."""
    if unit == "bytes":
        return float(1024 ** int(math.log(max(high, 1), 1024)))
    if unit == "s":
        return next((size for size in (3600.0, 60.0) if high >= 2 * size), 1.0)
    return 1.0


def axis_labels(marks: list[float], field: Field) -> list[str]:
    """The labels of the ticks. They have as many decimals as needed to differ."""
    scale_of = 100 if field.unit == "percentunit" else 1
    decimals = tick_decimals(marks, scale_of) if field.unit in ("none", "percentunit") else None
    return [text(mark, field.unit, decimals) for mark in marks]


def shape(one: Line, box: Box, ends: tuple[float, float], window: Window) -> str:
    """The line and the area of a series, with gaps where values are missing."""
    runs = list(pieces(one, box, ends, window))
    opacity = one.field.custom("fillOpacity", 0) / 100
    width = one.field.custom("lineWidth", 1)
    style = one.field.custom("lineStyle", {}) or {}
    dash = (
        f' stroke-dasharray="{" ".join(map(str, style["dash"]))}"'
        if style.get("fill") == "dash"
        else ""
    )
    areas = "".join(f"M{path(top + bottom[::-1])}Z" for top, bottom in runs) if opacity else ""
    strokes = "".join(f"M{path(top)}" for top, _ in runs) if width else ""
    return (
        f'<path d="{areas}" fill="{one.field.color}" fill-opacity="{opacity:g}"/>'
        f'<path d="{strokes}" fill="none" stroke="{one.field.color}" stroke-width="{width:g}"'
        f' stroke-linejoin="round"{dash}/>'
    )


def path(points: Iterable[Point]) -> str:
    """The points as coordinates of an SVG path."""
    return "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def pieces(
    one: Line, box: Box, ends: tuple[float, float], window: Window
) -> Iterable[tuple[list[Point], list[Point]]]:
    """Yield each run of present values: the points of the values and the points of their base."""
    stairs = one.field.custom("lineInterpolation") == "stepAfter"
    connect = one.field.custom("spanNulls", False)
    top: list[Point] = []
    bottom: list[Point] = []
    for time, value, base in zip(window.times, one.values, one.base, strict=True):
        if value is None:
            if top and not connect:
                yield top, bottom
                top, bottom = [], []
            continue
        x = box.x(time, window)
        if stairs and top:
            top.append((x, top[-1][1]))
            bottom.append((x, bottom[-1][1]))
        top.append((x, box.y(value, *ends)))
        bottom.append((x, box.y(max(base, ends[0]), *ends)))
    if top:
        yield top, bottom


def legend_height(panel: dict[str, Any], series: Sequence[DrawnSeries], width: float) -> float:
    """The height that the legend needs at this width, in pixels."""
    needed = sum(
        width_of(one.name) + 34 + 80 * len(panel["options"]["legend"].get("calcs", []))
        for one in series
    )
    return LEGEND_HEIGHT + LEGEND_LINE * int(needed // (width - 20))


def legend(panel: dict[str, Any], fields: Sequence[Field], series: Sequence[DrawnSeries]) -> str:
    """Names, colours and reduced values below the chart."""
    calcs = panel["options"]["legend"].get("calcs", [])
    entries = (entry(f, s, calcs) for f, s in zip(fields, series, strict=True))
    return f'<div class="legend">{"".join(entries)}</div>'


def entry(field: Field, series: DrawnSeries, calcs: Sequence[str]) -> str:
    """One entry of the legend."""
    values = series.present
    reduced = {
        "lastNotNull": values[-1],
        "mean": sum(values) / len(values),
        "max": max(values),
        "min": min(values),
    }
    shown = "".join(
        f"<b>{CALCS[c]}: {escape(text(reduced[c], field.unit, field.decimals))}</b>" for c in calcs
    )
    return f'<span><i style="background:{css(field.color)}"></i>{escape(field.name)}{shown}</span>'
