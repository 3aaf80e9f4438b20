"""The series of a job on its volume, from one coordinator to the next."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from regroup_trainer.coordinator.serving import series_store
from regroup_trainer.coordinator.serving.series_store import KEPT_SECONDS, SeriesStore
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import SERIES_FILE, SERIES_PATH, Series
from regroup_trainer.protocol.rank_messages import Progress
from tests.support.coordinator_server import Setup, serving
from tests.support.waiting import until


def report(step: int) -> Progress:
    return Progress(generation=GenerationNumber(1, 1), rank=0, step=step, time=1.0, loss=0.5)


def steps(text: str) -> list[int]:
    return [point.step for point in Series.model_validate_json(text).points]


async def test_a_successor_goes_on(tmp_path: Path) -> None:
    first = SeriesStore(lambda: tmp_path)
    await first.load()  # there is nothing yet
    for step in range(3):
        first.record(report(step), 2, now=1.0, wall=10.0 + step)
    await first.end()
    second = SeriesStore(lambda: tmp_path)
    second.record(report(3), 1, now=1.0, wall=20.0)
    await second.load()
    assert steps(second.text()) == [0, 1, 2, 3]


async def test_it_is_written_from_time_to_time(tmp_path: Path) -> None:
    store = SeriesStore(lambda: tmp_path)
    store.record(report(1), 2, now=KEPT_SECONDS + 1, wall=10.0)
    file = tmp_path / SERIES_FILE
    await until("the file", file.exists)
    store.record(report(2), 2, now=KEPT_SECONDS + 2, wall=20.0)
    store.record(report(2), 2, now=KEPT_SECONDS + 3, wall=20.0)
    assert steps(file.read_text()) == [1]
    await store.end()
    assert steps(file.read_text()) == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == [SERIES_FILE]


@pytest.mark.parametrize("content", ["", "{", '{"points": 3}', '{"points": [], "more": 1}'])
async def test_what_cannot_be_read_is_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / SERIES_FILE).write_text(content)
    store = SeriesStore(lambda: tmp_path)
    await store.load()
    assert steps(store.text()) == []


async def test_a_volume_that_refuses_or_is_unresponsive_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = SeriesStore(lambda: tmp_path / "missing")
    refused.record(report(1), 2, now=KEPT_SECONDS + 1, wall=10.0)
    await refused.end()
    assert steps(refused.text()) == [1]
    monkeypatch.setattr(series_store, "VOLUME_SECONDS", 0.01)
    held = threading.Event()
    monkeypatch.setattr(series_store, "read", lambda _file: held.wait(60) and None)
    stuck = SeriesStore(lambda: tmp_path)
    await stuck.load()
    held.set()
    assert steps(stuck.text()) == []


async def test_whoever_reaches_the_port_reads_it_without_the_token(tmp_path: Path) -> None:
    async with serving(tmp_path) as setup:
        answer = await setup.session.get(
            f"{setup.url}{SERIES_PATH}", headers={"Authorization": "none"}
        )
        assert (answer.status, answer.content_type) == (200, "application/json")
        assert steps(await answer.text()) == []


async def test_a_coordinator_serves_what_its_predecessor_has_kept(tmp_path: Path) -> None:
    former = SeriesStore(lambda: tmp_path / "job")
    (tmp_path / "job").mkdir()
    former.record(report(7), 2, now=1.0, wall=10.0)
    await former.end()
    async with serving(tmp_path) as setup:
        async with asyncio.timeout(60):
            while not (found := await read_series(setup)):
                continue  # each request lets the coordinator work
    assert found == [7]


async def read_series(setup: Setup) -> list[int]:
    async with setup.session.get(f"{setup.url}{SERIES_PATH}") as answer:
        return steps(await answer.text())
