"""Asking Prometheus over its HTTP API: range and instant queries, as plain values."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from demo.errors import QueryError

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Window:
    """The time that a picture shows, in seconds since the epoch, and the distance of its points."""

    start: float
    end: float
    step: float

    @classmethod
    def of(cls, start: float, end: float, points: int = 600) -> Window:
        """At most about `points` points, at least a second apart."""
        return cls(math.floor(start), math.ceil(end), float(max(1, math.ceil((end - start) / points))))

    @property
    def times(self) -> list[float]:
        """The times at which a range query answers."""
        return [self.start + self.step * n for n in range(int((self.end - self.start) / self.step) + 1)]


@dataclass(frozen=True)
class Sampled:
    """One series over a window: a value for each time, None where there is none."""

    labels: Labels
    values: list[float | None]


@dataclass(frozen=True)
class Server:
    """A Prometheus at `url` (http://host:port)."""

    url: str

    def range(self, expression: str, window: Window) -> list[Sampled]:
        """The series of an expression over a window. Raises QueryError."""
        form = {"query": expression, "start": window.start, "end": window.end, "step": window.step}
        return [sampled(one["metric"], one["values"], window) for one in self._ask("query_range", form)]

    def instant(self, expression: str, at: float) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an expression at a time. Raises QueryError."""
        found = self._ask("query", {"query": expression, "time": at})
        return [(one["metric"], float(one["value"][1])) for one in found]

    def ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _ask(self, path: str, form: dict[str, Any]) -> list[Any]:
        body = urllib.parse.urlencode(form).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}", body, timeout=30) as answer:
                found: list[Any] = json.load(answer)["data"]["result"]
                return found
        except urllib.error.HTTPError as error:
            raise QueryError(f"Prometheus refused {form['query']!r}: {json.load(error)['error']}") from error
        except OSError as error:
            raise QueryError(f"Prometheus at {self.url} does not answer: {error}") from error


def sampled(metric: dict[str, str], points: list[tuple[float, str]], window: Window) -> Sampled:
    """Points of the API laid on the window's times; what is not finite counts as no value."""
    known = {round(time): float(value) for time, value in points}
    values = (known.get(round(time)) for time in window.times)
    return Sampled(tuple(sorted(metric.items())), [v if v is not None and math.isfinite(v) else None for v in values])
