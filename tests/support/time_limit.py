"""No test begins after a certain time: `make test-long-local ARGS="-p tests.support.time_limit
--end-by $(date -d '30 minutes' +%s)"`.

A run of continuous integration has 90 minutes, and machines differ by a factor of two. Where the
time is over, the rest is skipped and named. Which files come last depends on the commit, so that
another commit tries what this one left.
"""

from __future__ import annotations

import subprocess
import time

import pytest

REASON = "no time was left for it"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option, in seconds since 1970, as `date +%s` prints them."""
    parser.addoption("--end-by", type=float, required=True, help="when no further test begins")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with another file for each commit. Several workers begin with what takes longest."""
    if not hasattr(config, "workerinput"):
        items[:] = turned(items, _commit())


def turned(items: list[pytest.Item], by: int) -> list[pytest.Item]:
    """The items, file by file, beginning with another file for each number."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    names = list(files)
    first = by % max(1, len(names))
    return [item for name in names[first:] + names[:first] for item in files[name]]


def _commit() -> int:
    name = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return int(name.stdout, 16)


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
