"""Draws stat panels (one large number) and tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from demo.picture.data import DrawnSeries
from demo.picture.drawing import svg, width_of
from demo.picture.fields import resolve
from demo.picture.units import shown, text

LARGEST = 50
NAME_HEIGHT = 20
"""Of the line above a figure that names it."""


def stat(panel: dict[str, Any], series: Sequence[DrawnSeries], width: float, height: float) -> str:
    """The body of a stat panel: the last value, or the name of the series with the newest value."""
    one = latest(series)
    field = resolve(panel, one.name)
    value = one.present[-1]
    mode = panel["options"].get("textMode")
    named = mode == "name"
    figure, suffix = (one.name, "") if named else shown(value, field.unit, field.decimals)
    name = f'<p class="name">{escape(one.name)}</p>' if mode == "value_and_name" else ""
    spark = panel["options"].get("graphMode") == "area"
    room = height * (0.62 if spark else 1) - NAME_HEIGHT * bool(name)
    size = min(
        LARGEST, room * 0.62, (width - 24) / (width_of(figure, 1) + 0.6 * width_of(suffix, 1))
    )
    color = field.threshold_color(value)
    body = (
        '<div class="stat" '
        f'style="height:{room:.0f}px;color:{color};font-size:{size:.0f}px">{escape(figure)}'
        f'<small style="font-size:{size * 0.6:.0f}px">{escape(suffix)}</small></div>'
    )
    return name + body + (sparkline(one, color, width, height - room) if spark else "")


def latest(series: Sequence[DrawnSeries]) -> DrawnSeries:
    """The series with the newest value."""
    return max(
        series, key=lambda one: max(i for i, value in enumerate(one.values) if value is not None)
    )


def sparkline(series: DrawnSeries, color: str, width: float, height: float) -> str:
    """The history of the value as a small area."""
    values = [(i, value) for i, value in enumerate(series.values) if value is not None]
    low, high = min(v for _, v in values), max(v for _, v in values)
    last = max(len(series.values) - 1, 1)
    points = [
        (width * i / last, height - 2 - (height - 6) * (v - low) / ((high - low) or 1))
        for i, v in values
    ]
    path = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"M{points[0][0]:.1f},{height:.1f}L{path}L{points[-1][0]:.1f},{height:.1f}Z"
    filled = f'<path d="{area}" fill="{color}" fill-opacity="0.18"/>'
    return svg(
        width,
        height,
        [filled, f'<path d="M{path}" fill="none" stroke="{color}" stroke-opacity="0.8"/>'],
    )


def table(panel: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """The body of a table panel. The `organize` transformation renames, orders and hides
    columns.
    """
    organize = next(t["options"] for t in panel["transformations"] if t["id"] == "organize")
    columns = sorted(
        organize["renameByName"], key=lambda name: organize["indexByName"].get(name, 99)
    )
    names = [organize["renameByName"][column] for column in columns]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = (
        "".join(
            cell(panel, name, row.get(column)) for column, name in zip(columns, names, strict=True)
        )
        for row in rows
    )
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def cell(panel: dict[str, Any], column: str, value: Any) -> str:
    """One value of a table."""
    field = resolve(panel, column)
    content = (
        text(value, field.unit, field.decimals) if isinstance(value, float) else str(value or "")
    )
    side = ' class="number"' if isinstance(value, float) else ""
    return f"<td{side}>{escape(content)}</td>"
