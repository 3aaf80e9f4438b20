"""The history of a run in a small file: what a Prometheus had, a value for each second.

Each line of the file is a JSON object: first the time of the first second, then one for each
series, with its labels and its values. Of these, a text has `value` or `valuexcount`, `_` for a
missing one.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from demo import programs
from demo.prometheus import Prometheus
from demo.promql import Sampled, Server, Window

SERIES = "trainingjob|leader_election|workqueue|controller_runtime|rest_client|reflector|process"
"""What the names of our series begin with."""
LATE_SECONDS = 15
"""The longest gap in a series that is taken for scrapes that failed on a busy machine."""
OPTIONS = (
    "--query.lookback-delta=2s",  # a missing value stands for the end of a series
    "--storage.tsdb.retention.time=100y",
)


@dataclass(frozen=True)
class History:
    """Series with a value for each second from `start` (since the epoch); None: it is missing."""

    start: float
    series: list[Sampled]

    @property
    def window(self) -> Window:
        """All of it."""
        return Window.of(self.start, self.start + len(self.series[0].values) - 1)


def export(server: Server, window: Window) -> History:
    """What a Prometheus has of our series. Raises QueryError."""
    each_second = Window(window.start, window.end, 1.0)
    found = server.range(f'{{__name__=~"({SERIES})_.+"}}', each_second)
    return History(window.start, [Sampled(one.labels, bridged(one.values)) for one in found])


def bridged(values: list[float | None]) -> list[float | None]:
    """The values, with those before them in gaps of at most LATE_SECONDS: a scrape came late."""
    whole: list[float | None] = []
    for missing, run in itertools.groupby(values, lambda value: value is None):
        found = list(run)
        ends = len(whole) + len(found) == len(values)
        late = missing and whole and not ends and len(found) <= LATE_SECONDS
        whole += [whole[-1]] * len(found) if late else found
    return whole


def write(history: History, file: Path) -> None:
    """Write a history. The same one gives the same bytes."""
    series = ({"labels": dict(one.labels), "values": packed(one.values)} for one in history.series)
    lines = map(json.dumps, ({"start": history.start}, *series))
    file.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def read(file: Path) -> History:
    """The history in a file."""
    first, *others = (json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines())
    series = [
        Sampled(tuple(sorted(one["labels"].items())), list(unpacked(one["values"])))
        for one in others
    ]
    return History(first["start"], series)


def packed(values: list[float | None]) -> str:
    """The values as text, to six digits, or to milliseconds where they are times."""
    texts = ("_" if v is None else shown(v) for v in values)
    runs = ((text, len(list(equal))) for text, equal in itertools.groupby(texts))
    return " ".join(text if count == 1 else f"{text}x{count}" for text, count in runs)


def shown(value: float) -> str:
    """A value in few digits."""
    if value == int(value):
        return f"{value:.0f}"
    return f"{value:.6g}" if abs(value) < 1e5 else f"{value:.3f}"


def unpacked(text: str) -> Iterator[float | None]:
    """The values of a text that `packed` made."""
    for run in text.split():
        value, _, count = run.partition("x")
        yield from itertools.repeat(None if value == "_" else float(value), int(count or 1))


def open_metrics(history: History) -> str:
    """The history in the OpenMetrics format."""
    lines = [
        f"{name_of(one)} {value} {history.start + second:.0f}"
        for one in sorted(history.series, key=lambda one: dict(one.labels)["__name__"])
        for second, value in enumerate(one.values)
        if value is not None and math.isfinite(value)
    ]
    return "\n".join([*lines, "# EOF", ""])


def name_of(one: Sampled) -> str:
    """A series as PromQL names it."""
    labels = dict(one.labels)
    name = labels.pop("__name__")
    return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}}"


def replay(text: str, folder: Path) -> Prometheus:
    """A Prometheus that holds a history, in the OpenMetrics format, in its storage in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "history.om").write_text(text)
    convert = ["tsdb", "create-blocks-from", "openmetrics"]
    command = [programs.prometheus("promtool"), *convert, str(folder / "history.om")]
    subprocess.run([*command, str(folder / "data")], check=True, capture_output=True)
    return Prometheus.start(folder, {"scrape_configs": []}, *OPTIONS)
