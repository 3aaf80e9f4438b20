"""Runs the queries of a dashboard's panels. It fills in variables and names series by their
legends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from demo.errors import NoDataError
from demo.promql import Server, Window
from demo.queries import NOT_ON_CPUS

SCRAPE_SECONDS = 1


@dataclass(frozen=True)
class DrawnSeries:
    """A named series of a panel."""

    name: str
    values: list[float | None]

    @property
    def present(self) -> list[float]:
        """The values that are not missing."""
        return [value for value in self.values if value is not None]


@dataclass(frozen=True)
class Source:
    """The data source of one picture."""

    server: Server
    window: Window
    variables: dict[str, str]
    scrape_seconds: float = SCRAPE_SECONDS
    """What Grafana takes for the interval of scrapes, and rates over four of them at least."""
    may_lack: frozenset[str] = NOT_ON_CPUS
    """Series that the run need not have. A query of one of them may have no data."""

    def expression(self, text: str) -> str:
        """The expression after Grafana's and the dashboard's variables are filled in."""
        interval, scrape = self.window.step, self.scrape_seconds
        builtin = {
            "__rate_interval": f"{max(interval + scrape, 4 * scrape):g}s",
            "__interval": f"{interval:g}s",
            "__range": f"{self.window.end - self.window.start:g}s",
        }
        return re.sub(r"\$\{?(\w+)\}?", lambda found: {**builtin, **self.variables}[found[1]], text)

    def series(self, panel: dict[str, Any]) -> list[DrawnSeries]:
        """All series of a panel over the window. Raises NoDataError for a query without data."""
        return [one for target in panel["targets"] for one in self._of(panel, target)]

    def _of(self, panel: dict[str, Any], target: dict[str, Any]) -> list[DrawnSeries]:
        found = self.server.range(self.expression(target["expr"]), self.window)
        if not any(value is not None for one in found for value in one.values):
            self._check_may_lack(panel, target)
            return []
        return [DrawnSeries(legend(target, dict(one.labels)), one.values) for one in found]

    def rows(self, panel: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows of a table panel. Values at the window's end are merged by their labels.

        Raises NoDataError for a query without data.
        """
        merged: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        for target in panel["targets"]:
            found = self.server.instant(self.expression(target["expr"]), self.window.end)
            if not found:
                self._check_may_lack(panel, target)
            for labels, value in found:
                row = merged.setdefault(tuple(sorted(labels.items())), dict(labels))
                row[f"Value #{target['refId']}"] = value
        return list(merged.values())

    def events(self, annotation: dict[str, Any]) -> list[float]:
        """The times at which the series of an annotation starts. Raises NoDataError."""
        found = self.server.range(self.expression(annotation["expr"]), self.window)
        if not found:
            raise NoDataError(
                f"annotation {annotation['name']!r} has no data for {annotation['expr']}"
            )
        values = [None, *found[0].values]
        return [
            t
            for t, before, now in zip(self.window.times, values, values[1:], strict=False)
            if now and not before
        ]

    def _check_may_lack(self, panel: dict[str, Any], target: dict[str, Any]) -> None:
        if not any(name in target["expr"] for name in self.may_lack):
            raise NoDataError(
                f"panel {panel['title']!r} has no data for {self.expression(target['expr'])}"
            )


def legend(target: dict[str, Any], labels: dict[str, str]) -> str:
    """The name of a series: the legend with `{{label}}` replaced."""
    return re.sub(
        r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), target["legendFormat"]
    )
