"""The list of names that users build on, docs/reference/names.md, has all that there is. It is kept
by hand, so what is taken away, or comes, is a change of that list too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
import pytest
import yaml

from demo import dashboard
from regroup.cli.command_line import main as regroup
from regroup.cli.kubectl_trainingjob import trainingjob
from tests.support.expositions import exported

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/reference/names.md").read_text()
Entries = Mapping[str, object]


def listed(section: str) -> Entries:
    """The entries of a section of the page."""
    (block,) = re.findall(rf"^## {section}$.*?^```yaml$(.*?)^```$", PAGE, re.M | re.S)
    found: Entries = yaml.safe_load(block)
    return found


def series() -> Entries:
    """Each series, with its type and labels."""
    return {one.name: " ".join([one.type, *sorted(one.labels)]) for one in exported()}


def alerts() -> Entries:
    """Each alert, with its severity."""
    files = (ROOT / "charts/regroup/alerts").glob("*.yaml")
    groups = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    return {rule["alert"]: rule["labels"]["severity"] for one in groups for rule in one["rules"]}


def verbs() -> Entries:
    """Each verb of the two commands."""
    return {
        "kubectl trainingjob": sorted(names(trainingjob)),
        "regroup": sorted(names(regroup) - {f"trainingjob {name}" for name in names(trainingjob)}),
    }


def names(group: click.Group) -> set[str]:
    """The verbs of a command, those of its groups too."""
    return set(_names(group))


def _names(group: click.Group) -> Iterator[str]:
    for name, command in group.commands.items():
        yield name
        if isinstance(command, click.Group):
            yield from (f"{name} {verb}" for verb in _names(command))


def broken(query: str) -> str:
    """A query as a line of the page can have it: what is too long breaks before a selector."""
    words = query.split(" ")
    return " ".join(word.replace("{", " {", 1) if len(word) > 98 else word for word in words)


def panels_of(board: str) -> Callable[[], Entries]:
    """The queries of the panels of a dashboard, as its file in the chart has them."""

    def panels() -> Entries:
        found: dict[str, list[str]] = {}
        for panel in yaml.safe_load(dashboard.output(board).read_text())["panels"]:
            queries = found.setdefault(panel["title"], [])
            queries.extend(broken(target["expr"]) for target in panel["targets"])
        return found

    return panels


SECTIONS: Mapping[str, Callable[[], Entries]] = {
    "Series": series,
    "Alerts": alerts,
    "Verbs": verbs,
    **{f"Panels of {board.title()}": panels_of(board) for board in dashboard.DASHBOARDS},
}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_list_of_names_has_all_that_there_is(section: str) -> None:
    kept, there = listed(section), SECTIONS[section]()
    assert {name: kept[name] for name in kept.keys() - there.keys()} == {}, "is missing"
    assert {name: there[name] for name in there.keys() - kept.keys()} == {}, "is not listed"
    assert kept == there
