"""The JSON of the dashboards, held against Grafana's schema.

Grafana publishes no JSON schema. Its schemas are written in CUE, and grafana-foundation-sdk has the
types that are generated from them for one release of Grafana. The builders only fill these types:
a type checker sees a wrong type, and nobody sees it in a place that takes any value. Here the files
of the chart are read into the types: what the schema does not know is lost on the way, and each
value is compared with its type.
"""

from __future__ import annotations

import copy
import json
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from pydantic import ConfigDict, TypeAdapter, ValidationError

from demo import dashboard

Json = dict[str, Any]
ANY_CLASS = ConfigDict(arbitrary_types_allowed=True)
register_default_plugins()


def problems(board: Json) -> list[str]:
    """What is wrong with a dashboard; the places as in its JSON or its types."""
    try:
        read = Dashboard.from_json(board)
    except ValueError as error:  # a value that its enumeration does not have
        return [str(error)]
    again = json.loads(json.dumps(read, cls=JSONEncoder))
    return [*lost(board, again, "dashboard"), *wrong_types(read, "dashboard")]


def lost(before: Any, after: Any, place: str) -> Iterator[str]:
    """The fields that are not there again. Defaults may have been added."""
    if isinstance(before, dict):
        for name, value in before.items():
            if name not in after:
                yield f"{place}.{name}: the schema does not know it"
            else:
                yield from lost(value, after[name], f"{place}.{name}")
    elif isinstance(before, list):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{place}[{number}]")
    elif before != after:
        yield f"{place}: {before!r} became {after!r}"


def wrong_types(value: Any, place: str) -> Iterator[str]:
    """The values below this one that are not of their types."""
    if isinstance(value, list | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, one in items:
            yield from wrong_types(one, f"{place}[{name}]")
    elif hasattr(value, "to_json"):
        for name, kind in typing.get_type_hints(type(value)).items():
            one = getattr(value, name)
            if isinstance(one, str | int | float | None) and not fits(one, kind):
                yield f"{place}.{name}: {one!r} is not {kind}"
            yield from wrong_types(one, f"{place}.{name}")


def fits(value: object, kind: Any) -> bool:
    """Whether a value is one of a type, as JSON has it: an enumeration has its values."""
    try:
        TypeAdapter(kind, config=ANY_CLASS).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return False
    return True


@pytest.fixture(params=dashboard.DASHBOARDS)
def board(request: pytest.FixtureRequest) -> Json:
    """The file of each dashboard in turn."""
    found: Json = json.loads(dashboard.output(request.param).read_text())
    return found


def test_the_schema_knows_all_of_a_dashboard(board: Json) -> None:
    assert problems(board) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("refreshes",), "5s"),
        (("panels", 0, "gridPos", "width"), 4),
        (("panels", 0, "options", "textmode"), "auto"),
        (("panels", 0, "targets", 0, "expression"), "up"),
        (("panels", 0, "options", "textMode"), "large"),
        (("panels", 0, "gridPos", "w"), "4"),
        (("panels", 0, "title"), 7),
        (("templating", "list", 0, "type"), "datasources"),
        (("panels", 0, "fieldConfig", "defaults", "color", "mode"), "threshold"),
    ],
    ids=lambda part: ".".join(map(str, part)) if isinstance(part, tuple) else None,
)
def test_a_field_or_a_value_that_grafana_does_not_know_is_found(
    board: Json, place: tuple[str | int, ...], value: object
) -> None:
    changed: Any = copy.deepcopy(board)
    inner = changed
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    assert problems(changed)
