"""Lays out the drawn panels as Grafana does: 24 columns, rows of 30 pixels, gaps of 8."""

from __future__ import annotations

import time
from html import escape
from typing import Any

from demo.picture import chart, figures, timeline
from demo.picture.data import Source
from demo.picture.fields import css

CHOSEN = {".*": "All"}
"""What Grafana shows for a value of a variable."""
WIDTH = 1600
MARGIN = 16
CELL = 38
GAP = 8
TITLE = 34
TOP = 104
STYLE = """
* { box-sizing: border-box; }
body { margin: 0; background: #111217; color: #ccccdc;
    font: 400 14px Inter, Roboto, Helvetica, Arial, sans-serif;
       font-feature-settings: "tnum"; }
header { height: 52px; padding: 0 16px; display: flex; align-items: center; gap: 10px;
    background: #181b1f;
         border-bottom: 1px solid rgba(204,204,220,0.12); font-size: 14px;
    color: rgba(204,204,220,0.65); }
header b { color: #ccccdc; font-weight: 500; }
header .range { margin-left: auto; }
.variables { height: 52px; padding: 10px 16px; display: flex; gap: 12px; }
.variables span { display: flex; height: 32px; font-size: 12px; }
.variables span > * { padding: 0 10px; line-height: 30px; border: 1px solid rgba(204,204,220,0.12);
    }
.variables i { font-style: normal; font-weight: 500; background: #181b1f;
    border-radius: 2px 0 0 2px; border-right: 0; }
.variables b { font-weight: 400; font-size: 14px; background: #111217; border-radius: 0 2px 2px 0; }
.range { border: 1px solid rgba(204,204,220,0.2); border-radius: 2px; padding: 6px 12px;
    color: #ccccdc; }
section { position: absolute; background: #181b1f; border: 1px solid rgba(204,204,220,0.12);
    border-radius: 2px;
          overflow: hidden; }
h2 { margin: 0; padding: 0 10px; font-size: 14px; font-weight: 500; line-height: 34px;
    height: 34px; }
svg { display: block; font-family: inherit; }
.stat { display: flex; align-items: center; justify-content: center; font-weight: 500;
    letter-spacing: -0.01em;
        padding-bottom: 8px; }
.stat small { font-weight: 500; align-self: center; white-space: pre; padding-top: 0.3em; }
.name { margin: 0; text-align: center; font-size: 14px; line-height: 20px; }
.legend { padding: 4px 10px 0; display: flex; flex-wrap: wrap; column-gap: 14px; font-size: 12px;
    line-height: 18px;
          white-space: nowrap; }
.legend i { display: inline-block; width: 14px; height: 4px; border-radius: 2px; margin-right: 6px;
            vertical-align: 3px; }
.legend b { font-weight: 400; color: rgba(204,204,220,0.65); margin-left: 8px; }
table { width: calc(100% - 20px); margin: 2px 10px; border-collapse: collapse; font-size: 14px; }
th, td { text-align: left; padding: 8px 6px; border-bottom: 1px solid rgba(204,204,220,0.08);
    font-weight: 400; }
th { color: #6e9fff; font-weight: 500; font-size: 12px; }
"""


def page(board: dict[str, Any], source: Source) -> tuple[str, int]:
    """The HTML page and its height in pixels. Raises NoDataError and QueryError."""
    events = [
        (css(one["iconColor"]), source.events(one))
        for one in board["annotations"].get("list", ())
        if one.get("expr")
    ]
    panels = "".join(section(panel, source, events) for panel in board["panels"])
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    head = (
        "<!doctype html><meta "
        f'charset="utf-8"><title>{escape(board["title"])}</title><style>{STYLE}</style>'
    )
    return f"{head}<body>{top(board, source)}{panels}</body>", TOP + CELL * rows + 2 * GAP


def top(board: dict[str, Any], source: Source) -> str:
    """The header with the title and the time range, and the variables below it."""
    start, end = (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))
        for t in (source.window.start, source.window.end)
    )
    values = {"datasource": "Prometheus", **source.variables}
    chosen = ((one["label"], values[one["name"]]) for one in board["templating"]["list"])
    shown = "".join(
        f"<span><i>{label}</i><b>{escape(CHOSEN.get(value, value))}</b></span>"
        for label, value in chosen
    )
    return (
        f"<header>Dashboards&ensp;›&ensp;<b>{escape(board['title'])}</b>"
        f'<span class="range">{start} to {end}</span></header><div class="variables">{shown}</div>'
    )


def section(panel: dict[str, Any], source: Source, events: list[tuple[str, list[float]]]) -> str:
    """A panel at its position."""
    place = panel["gridPos"]
    column = (WIDTH - 2 * MARGIN + GAP) / 24
    width, height = place["w"] * column - GAP, place["h"] * CELL - GAP
    left, upper = MARGIN + place["x"] * column, TOP + place["y"] * CELL
    style = f"left:{left:.1f}px;top:{upper}px;width:{width:.1f}px;height:{height}px"
    body = content(panel, source, (width - 2, height - TITLE - 2), events)
    return f'<section style="{style}"><h2>{escape(panel["title"])}</h2>{body}</section>'


def content(
    panel: dict[str, Any],
    source: Source,
    size: tuple[float, float],
    events: list[tuple[str, list[float]]],
) -> str:
    """The content of a panel, by its type."""
    if panel["type"] == "table":
        return figures.table(panel, source.rows(panel))
    series = source.series(panel)
    if not series:
        return '<p class="stat">No data</p>'
    if panel["type"] == "stat":
        return figures.stat(panel, series, *size)
    if panel["type"] == "state-timeline":
        return timeline.draw(panel, series, source.window, *size)
    return chart.draw(panel, series, source.window, size, events)
