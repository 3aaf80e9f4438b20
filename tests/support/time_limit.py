"""No test begins after a certain time: `make test-long-local ARGS="-p tests.support.time_limit
--end-by $(date -d '30 minutes' +%s)"`.

A run of continuous integration has 90 minutes, and machines differ by a factor of two. Where the
time is over, the rest is skipped and named. Which files come last depends on the commit, so that
another commit tries what this one left.
"""

from __future__ import annotations

import time
import zlib
from pathlib import PurePath
from typing import TypeVar

import pytest

from soak.product import commit

_T = TypeVar("_T")
REASON = "no time was left for it"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option, in seconds since 1970, as `date +%s` prints them."""
    parser.addoption("--end-by", type=float, required=True, help="when no further test begins")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with another file for each commit. Several workers begin with what takes longest."""
    if not hasattr(config, "workerinput"):
        items[:] = turned(items, zlib.crc32(commit().encode()))


def turned(items: list[pytest.Item], by: int) -> list[pytest.Item]:
    """The items, folder by folder and file by file, beginning with others for each number. A folder
    stays together, since its tests may share a cluster.
    """
    folders: dict[PurePath, dict[str, list[pytest.Item]]] = {}
    for item in items:
        file = item.nodeid.partition("::")[0]
        folders.setdefault(PurePath(file).parent, {}).setdefault(file, []).append(item)
    return [
        item
        for files in _rotated(list(folders.values()), by)
        for of_file in _rotated(list(files.values()), by)
        for item in of_file
    ]


def _rotated(values: list[_T], by: int) -> list[_T]:
    first = by % len(values) if values else 0
    return values[first:] + values[:first]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what comes too late, before its fixtures are made."""
    if time.time() > item.config.getoption("--end-by"):
        pytest.skip(REASON)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was not run."""
    skipped = terminalreporter.getreports("skipped")
    names = [report.nodeid for report in skipped if REASON in str(report.longrepr)]
    if names:
        terminalreporter.section(f"not run, because {REASON}: {len(names)}")
        for name in names:
            terminalreporter.write_line(name)
