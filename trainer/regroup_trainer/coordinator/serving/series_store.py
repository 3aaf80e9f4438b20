"""Keeps the series of a job on its volume, for the coordinators that follow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from regroup_trainer.coordinator.training_series import TrainingSeries
from regroup_trainer.protocol.job_status import SERIES_FILE, Series
from regroup_trainer.protocol.rank_messages import Progress
from regroup_trainer.system.background import Background
from regroup_trainer.system.kept_file import replace_text

KEPT_SECONDS = 15.0
"""What a coordinator that dies takes with it, at most."""
VOLUME_SECONDS = 3.0
"""For the last write, and for the read at the start."""
_MOST_BYTES = 4 * 1024 * 1024
log = logging.getLogger(__name__)
_Value = TypeVar("_Value")


class SeriesStore:
    """The series of one coordinator. A volume that does not answer costs it nothing but points."""

    def __init__(self, directory: Callable[[], Path]) -> None:
        self._directory = directory
        self._series = TrainingSeries()
        self._recorded: Progress | None = None
        self._is_new = False
        """Whether there are points that were not written."""
        self._written_at = 0.0
        self._work: Background[None] | None = None

    def record(self, progress: Progress | None, world_size: int, now: float, wall: float) -> None:
        """Take rank 0's newest report, and write what there is from time to time. `now` is
        monotonic time, `wall` the same by the wall clock.
        """
        if progress is None or progress is self._recorded:
            return
        self._recorded = progress
        self._is_new |= self._series.add(progress, world_size, wall)
        busy = self._work is not None and not self._work.future.done()
        if self._is_new and not busy and now - self._written_at > KEPT_SECONDS:
            self._written_at = now
            self._work = self._write()

    def text(self) -> str:
        """The series as JSON."""
        return self._series.value().model_dump_json()

    async def load(self) -> None:
        """Go on from what a former coordinator has kept."""
        file = self._directory() / SERIES_FILE
        former = await _within(VOLUME_SECONDS, Background(lambda: read(file)))
        if former is not None:
            self._series.continue_from(former)

    async def end(self) -> None:
        """Write what is left."""
        if self._is_new:
            await _within(VOLUME_SECONDS, self._write())

    def _write(self) -> Background[None]:
        self._is_new = False
        text, file = self.text(), self._directory() / SERIES_FILE
        return Background(lambda: write(file, text))


def read(file: Path) -> Series | None:
    """What a coordinator has written; None where there is nothing that can be read."""
    with contextlib.suppress(OSError, ValueError), file.open("rb") as stream:
        return Series.model_validate_json(stream.read(_MOST_BYTES))
    return None


def write(file: Path, text: str) -> None:
    """Replace the file. A volume that refuses is no loss of training: it is only noted."""
    try:
        replace_text(file, text)
    except OSError as error:
        log.debug("cannot keep the series of the job in %s: %s", file, error)


async def _within(seconds: float, work: Background[_Value]) -> _Value | None:
    """The result of the work; None where it takes longer."""
    answer = asyncio.wrap_future(work.future)
    done, _ = await asyncio.wait({answer}, timeout=seconds)
    return answer.result() if done else None
