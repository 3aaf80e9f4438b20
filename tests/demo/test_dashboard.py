"""The dashboards: valid where Grafana is strict, and every query answered by a real Prometheus."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from demo import dashboard, pictures
from demo.history import read
from demo.picture.data import Source
from demo.recording import FILE, LACKED
from tests.support.promql_text import alternatives

BOARDS = {name: build() for name, build in dashboard.DASHBOARDS.items()}
PAGE = Path(__file__).resolve().parents[2] / "docs/reference/dashboards.md"
VARIABLES = {"fleet": {"namespace": ".*"}, "operator": {}}
"""What is chosen where it is not the recorded job."""
TARGETS = [
    pytest.param(name, target["expr"], id=f"{name}: {panel['title']} {target['refId']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel["targets"]
]

PARTS = [
    pytest.param(name, part, id=f"{name}: {panel['title']} {target['refId']}, part {number}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel["targets"]
    for chain in alternatives(target["expr"])
    for number, part in enumerate(chain, 1)
]
ABSENT = {
    "trainingjob_samples_per_second": "a job counts tokens or samples, and this one counts tokens",
    'phase="Suspended"} == 1': "nobody suspends the job",
    'phase="Failed"} == 1': "the job succeeds",
    "reflector_unreadable_objects_total": "the operator can read every object",
}
"""What a part of a query asks for -> why the recorded run has none of it."""

AGGREGATION = re.compile(r"\b(?:sum|max|min|count|avg|topk|bottomk)(?: by \((?P<by>[^)]*)\))? ?\(")
FEW = {"namespace", "phase", "reason", "cause", "restored_from", "le", "use", "op", "kind", "mode"}
"""Labels of which there are few values, however many workers and jobs there are."""


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    return {
        (x, y)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    }


@pytest.fixture(params=BOARDS)
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each dashboard in turn."""
    return BOARDS[request.param]


@pytest.mark.parametrize("name", BOARDS)
def test_the_file_in_the_chart_is_what_the_generator_makes(name: str) -> None:
    assert json.loads(dashboard.output(name).read_text()) == BOARDS[name]


def test_every_file_in_the_chart_has_a_generator_and_an_identity_of_its_own() -> None:
    assert {file.stem for file in dashboard.FOLDER.iterdir()} == set(BOARDS)
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)


def test_panels_fill_the_grid_without_overlap_or_gap(board: dict[str, Any]) -> None:
    taken = [cell for panel in board["panels"] for cell in cells(panel)]
    assert len(taken) == len(set(taken)) == 24 * (max(y for _, y in taken) + 1)
    assert max(x for x, _ in taken) == 23


def test_every_panel_has_a_number_and_a_description(board: dict[str, Any]) -> None:
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(panel["description"] for panel in board["panels"])


def test_queries_use_no_variable_but_those_of_the_dashboard(board: dict[str, Any]) -> None:
    known = {one["name"] for one in board["templating"]["list"]} | {"__rate_interval", "__range"}
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert {name for query in queries for name in re.findall(r"\$\{?(\w+)", query)} <= known


def outermost(expression: str, at: int) -> re.Match[str] | None:
    """The outermost aggregation around a place in a query."""
    for found in AGGREGATION.finditer(expression, 0, at):
        depth = 1
        for character in expression[found.end() : at]:
            depth += {"(": 1, ")": -1}.get(character, 0)
            if not depth:
                break
        else:
            return found
    return None


@pytest.mark.parametrize(
    ("expression", "is_bounded"),
    [
        ("max(a{})", True),
        ("max by (pod) (a{})", False),
        ("topk(10, max by (rank) (a{}))", True),
        ("max(b{}) + rate(a{}[1m])", False),
        ("rate(a{}[1m])", False),
    ],
)
def test_what_makes_a_query_bounded(expression: str, is_bounded: bool) -> None:
    found = outermost(expression, expression.index("a{"))
    assert (found is not None and set(re.findall(r"\w+", found["by"] or "")) <= FEW) == is_bounded


@pytest.mark.parametrize(("name", "expression"), TARGETS)
def test_no_answer_grows_with_the_workers_ranks_or_jobs(name: str, expression: str) -> None:
    """Each of ten thousand workers exposes series. What a panel draws of them is one series for
    each value of a few labels, or a fixed number.
    """
    if name == "operator":
        return  # its series are those of the replicas
    for series in re.finditer(r"trainingjob_\w+\{", expression):
        found = outermost(expression, series.start())
        assert found, f"{series[0]} is not aggregated"
        assert set(re.findall(r"\w+", found["by"] or "")) <= FEW, found[0]


def has_data(run: Source, variables: dict[str, str], expression: str) -> bool:
    """Whether a query, with these variables, finds a value in the run."""
    chosen = dataclasses.replace(run, variables=variables)
    found = run.server.range(chosen.expression(expression), run.window)
    return any(value is not None for series in found for value in series.values)


@pytest.mark.parametrize(("name", "expression"), TARGETS)
def test_every_query_returns_data(run: Source, name: str, expression: str) -> None:
    assert has_data(run, VARIABLES.get(name, run.variables), expression)


@pytest.mark.parametrize(("name", "expression"), TARGETS)
def test_every_query_returns_data_of_a_real_run(
    real_run: Source, name: str, expression: str
) -> None:
    found = has_data(real_run, pictures.VARIABLES[name], expression)
    assert found or any(series in expression for series in LACKED)


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_each_part_of_an_or_returns_data_of_a_real_run(
    real_run: Source, name: str, part: str
) -> None:
    """What stands right of it would hide that the left side finds nothing."""
    reasons = [reason for what, reason in ABSENT.items() if what in part]
    assert has_data(real_run, pictures.VARIABLES[name], part) != bool(reasons), reasons or part


def test_what_the_recorded_run_lacks_is_really_missing_in_it() -> None:
    recorded = {dict(one.labels)["__name__"] for one in read(FILE).series}
    assert not recorded & LACKED, "empty LACKED of demo/recording: the recording has them now"


def test_the_page_of_dashboards_lists_every_panel(board: dict[str, Any]) -> None:
    """And each panel of the page is there."""
    name = board["title"].rpartition(" ")[2]
    (content,) = re.findall(rf"^## {name}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    listed = re.findall(r"^- \*\*(.+?)\*\*: ", content, re.M)
    assert sorted(listed) == sorted(panel["title"] for panel in board["panels"])


def test_a_slow_rank_is_red_and_the_others_are_green(run: Source) -> None:
    (heat,) = [panel for panel in BOARDS["job"]["panels"] if panel["title"] == "Stragglers"]
    last = {one.name: one.present[-1] for one in run.series(heat)}
    assert last == {"rank 0": 1.0, "rank 1": 1.5, "rank 2": 1.0}


def test_the_fleet_sees_what_each_job_waits_for(run: Source) -> None:
    fleet = dataclasses.replace(run, variables=VARIABLES["fleet"])
    (waits,) = [panel for panel in BOARDS["fleet"]["panels"] if panel["title"] == "Why jobs wait"]
    assert [series.name for series in fleet.series(waits)] == ["Unschedulable"]


def test_a_changed_generation_is_an_event(run: Source) -> None:
    (annotation,) = BOARDS["job"]["annotations"]["list"]
    assert len(run.events(annotation)) == 2


def column(run: Source, title: str) -> dict[str, float]:
    """A column of the table of namespaces at the end of the run."""
    (table,) = [panel for panel in BOARDS["fleet"]["panels"] if panel["title"] == "Namespaces"]
    names = next(one for one in table["transformations"] if one["id"] == "organize")
    (letter,) = [
        name[-1] for name, shown in names["options"]["renameByName"].items() if shown == title
    ]
    (query,) = [one["expr"] for one in table["targets"] if one["refId"] == letter]
    chosen = dataclasses.replace(run, variables=VARIABLES["fleet"])
    found = run.server.instant(chosen.expression(query), run.window.end)
    return {labels["namespace"]: round(value) for labels, value in found}


def test_the_fleet_counts_as_restarts_what_failed_in_the_time_that_is_shown(run: Source) -> None:
    """The run loses one node, and grows again by one."""
    assert column(run, "Restarts") == {"demo": 1}
    later = dataclasses.replace(
        run, window=dataclasses.replace(run.window, start=run.window.end - 30)
    )
    assert column(later, "Restarts") == {"demo": 0}
