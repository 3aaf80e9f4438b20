"""The page of the metrics, whose lists are made from what the programs export."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from demo import programs
from tests.support.expositions import PROGRAMS, exported
from tools.reference_pages import metric_page

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts/regroup"
ENTRY = re.compile(r"^- `(\w+)(?:\{[\w, ]+\})?`, (?:gauge|counter|histogram): ", re.MULTILINE)


@pytest.fixture(scope="module")
def real() -> set[str]:
    """The names of all series."""
    return {one.name for one in exported()}


def test_the_page_lists_each_series_once(real: set[str]) -> None:
    assert sorted(ENTRY.findall(metric_page())) == sorted(real)


def test_the_page_names_no_other_series(real: set[str]) -> None:
    assert set(re.findall(r"\btrainingjob_\w+", metric_page())) <= real


@pytest.mark.parametrize("folder", ["alerts", "dashboards"])
def test_rules_and_dashboards_ask_for_series_of_the_page(real: set[str], folder: str) -> None:
    texts = [file.read_text() for file in (CHART / folder).iterdir()]
    prefixes = {name.partition("_")[0] for name in real}
    asked = set(re.findall(rf"\b(?:{'|'.join(prefixes)})_\w+", " ".join(texts)))
    assert len(asked) >= 10
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} <= real


@pytest.mark.parametrize("exposition", PROGRAMS)
def test_promtool_finds_no_fault_with_a_scrape(exposition: Callable[[], str]) -> None:
    command = [programs.prometheus("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=exposition(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
