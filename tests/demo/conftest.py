"""A Prometheus that holds the history of a run, for the tests of what reads it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from demo.history import open_metrics, read, replay
from demo.picture.data import Source
from demo.promql import Window
from demo.recording import FILE
from tests.support.recorded_run import SECONDS, record


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """The recorded run as a source of pictures."""
    start = time.time() // 1 - 3600
    prometheus = record(tmp_path_factory.mktemp("prometheus"), start)
    yield Source(
        prometheus.server,
        Window.of(start, start + SECONDS - 1),
        {"namespace": "demo", "trainingjob": "gpt-demo"},
    )
    prometheus.stop()


@pytest.fixture(scope="session")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """The history that `make dashboards` draws. It has no variables."""
    history = read(FILE)
    prometheus = replay(open_metrics(history), tmp_path_factory.mktemp("real"))
    yield Source(prometheus.server, history.window, {})
    prometheus.stop()
