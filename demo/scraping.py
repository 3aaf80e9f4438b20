"""A Prometheus that scrapes a stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo import installation
from demo.prometheus import Prometheus, monitored_by
from demo.promql import Server
from demo.stages.stage import Stage
from demo.targets import Discovery


@contextmanager
def scraped(stage: Stage, folder: Path) -> Iterator[Server]:
    """Inside, a Prometheus scrapes the stage as the chart's monitors say. Its data are in
    `folder`.
    """
    config = monitored_by(installation.monitors(stage.kubectl), folder)
    with stage.route() as route, Discovery(stage.kubectl, folder, route):
        monitor = Prometheus.start(folder, config)
        try:
            yield monitor.server
        finally:
            monitor.stop()
