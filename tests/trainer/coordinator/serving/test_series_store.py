"""The series of a job on its volume, from one coordinator to the next."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import aiohttp
import pytest

from regroup_trainer.coordinator.serving import series_store
from regroup_trainer.coordinator.serving.series_store import KEPT_SECONDS, SeriesStore, read
from regroup_trainer.coordinator.training_series import TrainingSeries
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import SERIES_FILE, SERIES_PATH, Series
from regroup_trainer.protocol.rank_messages import Progress
from tests.support.coordinator_server import Setup, serving
from tests.support.waiting import until


def report(step: int) -> Progress:
    return Progress(generation=GenerationNumber(1, 1), rank=0, step=step, time=1.0, loss=0.5)


def steps(text: str | bytes) -> list[int]:
    return [point.step for point in Series.model_validate_json(text).points]


async def keep(directory: Path, step: int, wall: float) -> None:
    """A former coordinator has kept one point."""
    former = SeriesStore(lambda: directory)
    await former.load()
    former.record(report(step), 2, now=1.0, wall=wall)
    await former.end()


async def test_a_successor_goes_on(tmp_path: Path) -> None:
    first = SeriesStore(lambda: tmp_path)
    await first.load()  # there is nothing yet
    for step in range(3):
        first.record(report(step), 2, now=1.0, wall=10.0 + step)
    await first.end()
    second = SeriesStore(lambda: tmp_path)
    second.record(report(3), 1, now=1.0, wall=20.0)
    await second.load()
    assert steps(second.content()) == [0, 1, 2, 3]


async def test_it_is_written_from_time_to_time(tmp_path: Path) -> None:
    store = SeriesStore(lambda: tmp_path)
    await store.load()
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
async def test_what_nobody_can_read_is_put_aside(tmp_path: Path, content: str) -> None:
    file = tmp_path / SERIES_FILE
    file.write_text(content)
    store = SeriesStore(lambda: tmp_path)
    await store.load()
    assert steps(store.content()) == []
    store.record(report(1), 2, now=1.0, wall=10.0)
    await store.end()
    assert steps(file.read_text()) == [1]
    assert file.with_suffix(".unreadable").read_text() == content


async def test_what_is_kept_of_a_later_time_is_not_lost(tmp_path: Path) -> None:
    await keep(tmp_path, 1, wall=5000.0)
    store = SeriesStore(lambda: tmp_path)
    store.record(report(2), 2, now=1.0, wall=10.0)
    await store.load()
    await store.end()
    assert steps((tmp_path / SERIES_FILE).read_text()) == [2, 1]


async def test_a_volume_that_refuses_a_write_stops_nothing(tmp_path: Path) -> None:
    refused = SeriesStore(lambda: tmp_path / "missing")
    await refused.load()
    refused.record(report(1), 2, now=KEPT_SECONDS + 1, wall=10.0)
    await refused.end()
    assert steps(refused.content()) == [1]


async def test_a_volume_that_answers_late_has_all_points_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(tmp_path, 1, wall=10.0)
    answers = threading.Event()
    monkeypatch.setattr(series_store, "read", lambda file: answers.wait(60) and read(file))
    file, store = tmp_path / SERIES_FILE, SeriesStore(lambda: tmp_path)
    loading = asyncio.create_task(store.load())
    for step in (2, 3):
        await asyncio.sleep(0)
        store.record(report(step), 2, now=step * 100.0, wall=step * 100.0)
    assert steps(store.content()) == [2, 3]
    assert steps(file.read_text()) == [1]
    answers.set()
    await loading
    store.record(report(4), 2, now=400.0, wall=400.0)
    await until("the points of both", lambda: steps(file.read_text()) == [1, 2, 3, 4])


async def test_a_volume_that_never_answers_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(tmp_path, 1, wall=10.0)
    held = threading.Event()
    monkeypatch.setattr(series_store, "read", lambda _file: held.wait(60) and Series())
    store = SeriesStore(lambda: tmp_path)
    loading = asyncio.create_task(store.load())
    await asyncio.sleep(0)
    store.record(report(2), 2, now=KEPT_SECONDS + 1, wall=20.0)
    await store.end()
    assert not loading.done()
    assert steps((tmp_path / SERIES_FILE).read_text()) == [1]
    loading.cancel()
    held.set()


async def test_a_volume_that_gives_an_error_is_read_again_and_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await keep(tmp_path, 1, wall=10.0)
    errors = [OSError(errno.EIO, "Input/output error"), OSError(errno.ESTALE, "Stale file handle")]

    def read_with_errors(file: Path) -> Series:
        if errors:
            raise errors.pop(0)
        return read(file)

    monkeypatch.setattr(series_store, "read", read_with_errors)
    monkeypatch.setattr(series_store, "RETRY_SECONDS", 0.01)
    store = SeriesStore(lambda: tmp_path)
    await store.load()
    assert steps(store.content()) == [1]
    (line,) = caplog.records
    assert line.getMessage() == (
        f"cannot read the former points of the job's metrics in {tmp_path / SERIES_FILE}: "
        "[Errno 5] Input/output error; they are read again every 0 s, and no points are kept "
        "until then"
    )


async def test_whoever_reaches_the_port_reads_it_without_the_token(tmp_path: Path) -> None:
    async with serving(tmp_path) as setup:
        answer = await setup.session.get(
            f"{setup.url}{SERIES_PATH}", headers={"Authorization": "none"}
        )
        assert (answer.status, answer.content_type) == (200, "application/json")
        assert steps(await answer.text()) == []


async def test_what_has_not_changed_is_serialised_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(tmp_path, 1, wall=10.0)
    made: list[Series] = []
    value = TrainingSeries.value

    def noted(series: TrainingSeries) -> Series:
        made.append(value(series))
        return made[-1]

    monkeypatch.setattr(TrainingSeries, "value", noted)
    store = SeriesStore(lambda: tmp_path)
    assert steps(store.content()) == []
    await store.load()
    for step, wall in ((2, 20.0), (2, 20.0), (3, 20.5), (4, 30.0)):
        store.record(report(step), 2, now=1.0, wall=wall)
        for _ in range(100):
            store.content()
    assert steps(store.content()) == [1, 2, 4]
    assert len(made) == 1 + 2


async def test_those_who_ask_again_and_again_leave_it_to_those_with_the_token(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as setup, aiohttp.ClientSession() as session:
        url = f"{setup.url}{SERIES_PATH}"
        async with asyncio.timeout(60):
            while (answer := await session.get(url)).status == 200:
                continue
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        assert await read_series(setup) == []
        async with asyncio.timeout(60):
            while (await session.get(url)).status != 200:
                continue  # the next second comes


async def test_a_coordinator_serves_what_its_predecessor_has_kept(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    await keep(tmp_path / "job", 7, wall=10.0)
    async with serving(tmp_path) as setup:
        async with asyncio.timeout(60):
            while not (found := await read_series(setup)):
                continue  # each request lets the coordinator work
    assert found == [7]


async def read_series(setup: Setup) -> list[int]:
    async with setup.session.get(f"{setup.url}{SERIES_PATH}") as answer:
        return steps(await answer.text())
