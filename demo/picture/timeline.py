"""Draws a state timeline panel. Each series is a row, and each run of equal values is a coloured
bar.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from demo.picture.chart import LEGEND_HEIGHT
from demo.picture.data import DrawnSeries
from demo.picture.drawing import Box, label, svg, time_axis, width_of
from demo.picture.fields import Field, resolve
from demo.picture.units import text
from demo.promql import Window

DARK = "#111217"


def draw(
    panel: dict[str, Any],
    series: Sequence[DrawnSeries],
    window: Window,
    width: float,
    height: float,
) -> str:
    """The body of a state timeline panel."""
    left = max(width_of(one.name) for one in series) + 18
    box = Box(left, 4, width - left - 10, height - 30 - LEGEND_HEIGHT)
    row = box.height / len(series)
    parts = list(time_axis(box, window))
    fields = [resolve(panel, one.name, index) for index, one in enumerate(series)]
    for index, (field, one) in enumerate(zip(fields, series, strict=True)):
        middle = box.top + row * (index + 0.5)
        parts.append(label(left - 8, middle + 4, one.name, "end"))
        parts += bars(field, one, box, window, (middle, row * 0.82))
    return svg(width, height - LEGEND_HEIGHT, parts) + legend(fields, series)


def legend(fields: Sequence[Field], series: Sequence[DrawnSeries]) -> str:
    """The legend: the named values that occur, with their colours."""
    mapped = [
        field.mapped(value)
        for field, one in zip(fields, series, strict=True)
        for value in sorted(set(one.present))
    ]
    entries = (
        f'<span><i style="background:{color}"></i>{escape(name)}</span>'
        for name, color in mapped
        if name
    )
    return f'<div class="legend">{"".join(entries)}</div>'


def bars(
    field: Field, series: DrawnSeries, box: Box, window: Window, lane: tuple[float, float]
) -> Iterable[str]:
    """The bars of a row. `lane` is the row's middle and height, in pixels."""
    middle, height = lane
    for start, end, value in runs(series, window):
        name, color = field.mapped(value)
        x, width = box.x(start, window), box.x(end, window) - box.x(start, window)
        yield (
            f'<rect x="{x:.1f}" y="{middle - height / 2:.1f}" width="{max(width - 1, 1):.1f}" '
            f'height="{height:.1f}"'
            f' fill="{color}" fill-opacity="0.85"/>'
        )
        shown = name or text(value, field.unit, field.decimals)
        if width > width_of(shown, 13) + 8:
            yield label(x + width / 2, middle + 5, shown, "middle", DARK, 13)


def runs(series: DrawnSeries, window: Window) -> Iterable[tuple[float, float, float]]:
    """Yield start, end and value of each run of equal values."""
    times = [*window.times, window.end]
    start: float | None = None
    current: float | None = None
    for time, value in zip(times, [*series.values, None], strict=True):
        if value == current:
            continue
        if current is not None and start is not None:
            yield start, time, current
        start, current = time, value
