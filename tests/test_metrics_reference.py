"""The page of the metrics, compared with what the programs really export."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from demo import programs
from tests.support.expositions import PROGRAMS, Series, exported

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reference/metrics.md"
CHART = ROOT / "charts/regroup"
JOB = {"namespace", "trainingjob"}
"""Labels of every series of a job, which the page leaves out."""
SECTIONS: dict[str, set[str]] = {
    "Jobs, from the operator": JOB,
    "The operator itself": set(),
    "A job, from its coordinator": JOB,
    "A job, from the worker of rank 0": JOB,
    "Ranks, from the worker that they run on": JOB,
}
ENTRY = re.compile(r"`(\w+)(?:\{([\w, ]+)\})?`, (gauge|counter|histogram): (.+)")


def listed(section: str) -> list[Series]:
    """The entries of a section of the page."""
    (content,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    entries = re.findall(r"^- (.+?)(?=^- |^$|\Z)", content, re.M | re.S)
    found = [ENTRY.fullmatch(" ".join(entry.split())) for entry in entries]
    assert found
    assert all(found), f"an entry of {section!r} is not like: `name{{label}}`, gauge: text"
    return [
        Series(name, kind, frozenset(re.findall(r"\w+", labels or "")) | SECTIONS[section], text)
        for name, labels, kind, text in (match.groups() for match in found if match)
    ]


ON_PAGE = {one.name: one for section in SECTIONS for one in listed(section)}


@pytest.fixture(scope="module")
def real() -> dict[str, Series]:
    """What the programs export, by name."""
    return {one.name: one for one in exported()}


def test_the_page_lists_what_is_exported(real: dict[str, Series]) -> None:
    assert set(ON_PAGE) == set(real)
    assert len(ON_PAGE) == sum(len(listed(section)) for section in SECTIONS)


@pytest.mark.parametrize("name", list(ON_PAGE))
def test_type_labels_and_help_are_those_of_a_scrape(real: dict[str, Series], name: str) -> None:
    shown = ON_PAGE[name]
    assert (shown.type, shown.labels) == (real[name].type, real[name].labels)
    assert shown.text.startswith(real[name].text.rstrip(".")), real[name].text


@pytest.mark.parametrize("folder", ["alerts", "dashboards"])
def test_rules_and_dashboards_ask_for_series_of_the_page(folder: str) -> None:
    texts = [file.read_text() for file in (CHART / folder).iterdir()]
    prefixes = {name.partition("_")[0] for name in ON_PAGE}
    asked = set(re.findall(rf"\b(?:{'|'.join(prefixes)})_\w+", " ".join(texts)))
    assert len(asked) >= 10
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} <= set(ON_PAGE)


@pytest.mark.parametrize("exposition", PROGRAMS)
def test_promtool_finds_no_fault_with_a_scrape(exposition: Callable[[], str]) -> None:
    command = [programs.prometheus("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=exposition(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
