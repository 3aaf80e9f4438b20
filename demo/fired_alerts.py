"""Fires each alert of the chart: python -m demo.fired_alerts

A real Prometheus loads the chart's rules and sends what fires to a real Alertmanager. It scrapes,
from an exporter of this script, the series with which the tests of the rules let each alert fire.
All that the rules say of time is shortened by FACTOR: an hour is 36 seconds.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from demo.alertmanager import Alertmanager, running_alertmanager
from demo.prometheus import Prometheus
from demo.short_rules import shortened_groups
from regroup.local.processes import ADDRESS
from tests.support.alert_courses import COURSES, Fires

ALERTS = Path(__file__).resolve().parent.parent / "charts/regroup/alerts"
FACTOR = 100
MINUTE = 60 / FACTOR
"""Seconds that stand for a minute, in which each series has one value."""
DEADLINE_SECONDS = 240.0
"""The play takes 80 seconds where the machine has time."""
Sample = tuple[str, str, list[str]]
"""Name of a series, its labels, and its values minute by minute; `_` for a missing one."""


@dataclass(frozen=True)
class Arrival:
    """An alert as Alertmanager has it, and when it was first seen there."""

    labels: dict[str, str]
    annotations: dict[str, str]
    seconds: float


def rules() -> dict[str, Any]:
    """The rules of all files of the chart, shortened."""
    groups = (
        group
        for file in sorted(ALERTS.glob("*.yaml"))
        for group in yaml.safe_load(file.read_text())["groups"]
    )
    return shortened_groups(groups, FACTOR)


# --- what is played -------------------------------------------------------------------------------


def samples() -> list[Sample]:
    """The series of the first course of each alert in which it fires."""
    return [
        sample
        for alert, courses in COURSES.items()
        for sample in of_course(alert, next(one for one in courses if isinstance(one, Fires)))
    ]


def of_course(alert: str, course: Fires) -> Iterator[Sample]:
    """The series of one alert, in a job and on instances of their own."""
    for series, values in course.given.items():
        name, labels = series.removesuffix("}").split("{")
        own = re.sub(r'(trainingjob|pod|instance)="', rf'\1="{alert.lower()}-', labels)
        minutes = list(expanded(values))
        # While an operator leads, no alert says that none does.
        ends = alert == "TrainingJobInternalError"
        yield name, own, minutes[: course.minute + 5] if ends else minutes


def expanded(values: str) -> Iterator[str]:
    """The values of a series in promtool's notation."""
    for part in values.split():
        if not (found := re.fullmatch(r"(-?[\d.]+|_)(?:([+-][\d.]+))?x(\d+)", part)):
            yield part
            continue
        first, step, count = found[1], float(found[2] or 0), int(found[3])
        for number in range(count + (first != "_")):
            yield first if first == "_" else f"{float(first) + step * number:g}"


class Exporter(ThreadingHTTPServer):
    """Serves the series, at each scrape those of the next minute: a scrape that comes late, since
    the machine is busy, misses none.
    """

    def __init__(self) -> None:
        super().__init__((ADDRESS, 0), _Handler)
        self.samples = samples()
        self._minutes = itertools.count()
        self._began = time.time()

    def exposition(self) -> str:
        """The text for the next scrape."""
        minute = next(self._minutes)
        return "".join(
            f"{name}{{{labels}}} {self._shown(name, values[minute])}\n"
            for name, labels, values in self.samples
            if minute < len(values) and values[minute] != "_"
        )

    def _shown(self, name: str, value: str) -> str:
        """The courses begin at the time 0."""
        is_time = name.endswith("_timestamp_seconds")
        return f"{self._began + float(value) / FACTOR:.3f}" if is_time else value


class _Handler(BaseHTTPRequestHandler):
    server: Exporter

    def do_GET(self) -> None:
        body = self.server.exposition().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the scrape took too long
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Scrapes are not logged."""


# --- the play -------------------------------------------------------------------------------------


@contextmanager
def exporter() -> Iterator[str]:
    """Inside, the exporter answers at this address."""
    with Exporter() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{ADDRESS}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def configuration(rule_file: Path, exporter: str, manager: Alertmanager) -> dict[str, Any]:
    """Of a Prometheus that scrapes and evaluates once a minute of the play."""
    interval = f"{MINUTE * 1000:.0f}ms"
    every = {"scrape_interval": interval, "scrape_timeout": interval}
    job = {"job_name": "played", "honor_labels": True}
    return {
        "global": {**every, "evaluation_interval": interval},
        "rule_files": [str(rule_file)],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.address]}]}]},
        "scrape_configs": [{**job, "static_configs": [{"targets": [exporter]}]}],
    }


def fire(folder: Path, report: Callable[[str, Arrival], None]) -> dict[str, Arrival]:
    """The alerts that Alertmanager receives, by their names, and reported as they come. Raises
    DemoError.
    """
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules()))
    with running_alertmanager(folder / "alertmanager") as manager, exporter() as address:
        config = configuration(folder / "rules.yaml", address, manager)
        monitor = Prometheus.start(folder / "prometheus", config)
        try:
            return arrivals(manager, report)
        finally:
            monitor.stop()


def arrivals(manager: Alertmanager, report: Callable[[str, Arrival], None]) -> dict[str, Arrival]:
    """What reaches Alertmanager until all have, or for DEADLINE_SECONDS."""
    found: dict[str, Arrival] = {}
    began = time.monotonic()
    while len(found) < len(COURSES) and time.monotonic() < began + DEADLINE_SECONDS:
        for alert in manager.alerts():
            name = alert["labels"]["alertname"]
            if name not in found and is_own(alert["labels"]):
                arrival = Arrival(alert["labels"], alert["annotations"], time.monotonic() - began)
                report(name, found.setdefault(name, arrival))
        time.sleep(0.2)
    return found


def is_own(labels: dict[str, str]) -> bool:
    """Whether an alert is about the job for which it was played, or about no job."""
    job = labels.get("trainingjob")
    return job is None or job.startswith(f"{labels['alertname'].lower()}-")


def main() -> None:
    """Print each alert when Alertmanager has it."""

    def report(name: str, arrival: Arrival) -> None:
        labels = ", ".join(f"{k}={v}" for k, v in arrival.labels.items() if k != "alertname")
        url = arrival.annotations["runbook_url"]
        print(f"{arrival.seconds:5.1f} s  {name}: {labels}\n         {url}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        found = fire(Path(folder), report)
    if missing := set(COURSES) - set(found):
        sys.exit(f"Alertmanager did not receive {', '.join(sorted(missing))}")
    print(f"Alertmanager received all {len(found)} alerts.")


if __name__ == "__main__":
    main()
