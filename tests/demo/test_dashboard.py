"""The Job dashboard: valid where Grafana is strict, and every query answered by a real
Prometheus.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from demo import dashboard
from demo.picture.data import Source

BOARD = dashboard.build()
TARGETS = [
    (panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel["targets"]
]


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    return {
        (x, y)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    }


def test_the_file_in_the_chart_is_what_the_generator_makes() -> None:
    assert json.loads(dashboard.OUTPUT.read_text()) == BOARD


def test_panels_fill_the_grid_without_overlap_or_gap() -> None:
    taken = [cell for panel in BOARD["panels"] for cell in cells(panel)]
    assert len(taken) == len(set(taken)) == 24 * (max(y for _, y in taken) + 1)
    assert max(x for x, _ in taken) == 23


def test_every_panel_has_a_number_and_a_description() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert all(panel["description"] for panel in BOARD["panels"])


def test_queries_use_no_variable_but_those_of_the_dashboard() -> None:
    known = {one["name"] for one in BOARD["templating"]["list"]} | {"__rate_interval"}
    used = {name for _, expression in TARGETS for name in re.findall(r"\$\{?(\w+)", expression)}
    assert used <= known


@pytest.mark.parametrize(("title", "expression"), TARGETS)
def test_every_query_returns_data(run: Source, title: str, expression: str) -> None:
    found = run.server.range(run.expression(expression), run.window)
    assert any(value is not None for series in found for value in series.values), title


def test_a_changed_generation_is_an_event(run: Source) -> None:
    (annotation,) = BOARD["annotations"]["list"]
    assert len(run.events(annotation)) == 2
