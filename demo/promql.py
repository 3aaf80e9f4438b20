"""Range and instant queries to the HTTP API of Prometheus. The results are plain values."""

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


POINTS = 600


@dataclass(frozen=True)
class Window:
    """The time range of a picture and the distance of its points, in seconds since the epoch."""

    start: float
    end: float
    step: float

    @classmethod
    def of(cls, start: float, end: float) -> Window:
        """A window with about POINTS points at most, at least a second apart."""
        step = float(max(1, math.ceil((end - start) / POINTS)))
        return cls(math.floor(start), math.ceil(end), step)

    @property
    def times(self) -> list[float]:
        """The times for which a range query returns values."""
        return [
            self.start + self.step * n for n in range(int((self.end - self.start) / self.step) + 1)
        ]


@dataclass(frozen=True)
class Sampled:
    """One series over a window: a value for each time, or None where it is missing."""

    labels: Labels
    values: list[float | None]


@dataclass(frozen=True)
class Server:
    """A Prometheus at `url` (http://host:port)."""

    url: str

    def range(self, expression: str, window: Window) -> list[Sampled]:
        """The series of an expression over a window. Raises QueryError."""
        form = {"query": expression, "start": window.start, "end": window.end, "step": window.step}
        return [
            sampled(one["metric"], one["values"], window) for one in self._ask("query_range", form)
        ]

    def instant(self, expression: str, at: float) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an expression at time `at`. Raises QueryError."""
        found = self._ask("query", {"query": expression, "time": at})
        return [(one["metric"], float(one["value"][1])) for one in found]

    def ready(self) -> bool:
        """Whether the server answers queries."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def _ask(self, path: str, form: dict[str, Any]) -> list[Any]:
        body = urllib.parse.urlencode(form).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}", body, timeout=30) as answer:
                found: list[Any] = json.load(answer)["data"]["result"]
                return found
        except urllib.error.HTTPError as error:
            with error:  # it holds the connection
                reason = json.load(error)["error"]
            raise QueryError(f"Prometheus refused {form['query']!r}: {reason}") from error
        except OSError as error:
            raise QueryError(f"Prometheus at {self.url} does not answer: {error}") from error


def sampled(metric: dict[str, str], points: list[tuple[float, str]], window: Window) -> Sampled:
    """The API's points as values at the window's times. A value that is not finite counts as
    missing.
    """
    known = {round(time): float(value) for time, value in points}
    values = (known.get(round(time)) for time in window.times)
    return Sampled(
        tuple(sorted(metric.items())),
        [v if v is not None and math.isfinite(v) else None for v in values],
    )
