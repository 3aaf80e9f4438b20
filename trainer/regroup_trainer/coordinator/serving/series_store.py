"""Keeps the series of a job on its volume, for the coordinators that follow."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from pathlib import Path

from regroup_trainer.coordinator.training_series import TrainingSeries
from regroup_trainer.protocol.job_status import SERIES_FILE, Series
from regroup_trainer.protocol.rank_messages import Progress
from regroup_trainer.system.background import Background
from regroup_trainer.system.kept_file import replace_text

KEPT_SECONDS = 15.0
"""What a coordinator that dies takes with it, at most."""
VOLUME_SECONDS = 3.0
"""For the last write."""
RETRY_SECONDS = 5.0
"""Between two tries to read what a former coordinator has kept."""
UNPROVEN_A_SECOND = 20
"""Answers to whoever has no token. A page of the job asks every few seconds."""
_MOST_BYTES = 4 * 1024 * 1024
_CANNOT_READ = (
    "cannot read the former points of the job's metrics in %s: %s; they are read again every "
    "%.0f s, and no points are kept until then"
)
log = logging.getLogger(__name__)


class SeriesStore:
    """The series of one coordinator. A volume that does not answer costs it nothing but points: its
    own, and only if it ends before the volume has answered.
    """

    def __init__(self, directory: Callable[[], Path]) -> None:
        self._directory = directory
        self._series = TrainingSeries()
        self._content: bytes | None = None
        """The series as JSON; None: it has changed. Thousands of points take milliseconds, and
        whoever reaches the port may ask, again and again.
        """
        self._answered, self._answered_since = 0, -math.inf
        """How many without the token in this second, and when it began."""
        self._recorded: Progress | None = None
        self._goes_on = False
        """Whether it is known what a former coordinator has kept. Until then nothing is written,
        for that would replace it.
        """
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
        if self._series.add(progress, world_size, wall):
            self._is_new, self._content = True, None
        busy = self._work is not None and not self._work.future.done()
        if self._may_write and not busy and now - self._written_at > KEPT_SECONDS:
            self._written_at = now
            self._work = self._write()

    def content(self) -> bytes:
        """The series as JSON."""
        if self._content is None:
            self._content = self._series.value().model_dump_json().encode()
        return self._content

    def may_answer_unproven(self, now: float) -> bool:
        """Whether one more is answered in this second. Some 300 KB go out each time."""
        if now - self._answered_since >= 1.0:
            self._answered, self._answered_since = 0, now
        self._answered += 1
        return self._answered <= UNPROVEN_A_SECOND

    async def load(self) -> None:
        """Go on from what a former coordinator has kept, however late the volume answers."""
        former, is_noted = await self._read(), False
        while isinstance(former, OSError):
            if not is_noted:
                log.warning(_CANNOT_READ, self._file, former, RETRY_SECONDS)
            is_noted = True
            await asyncio.sleep(RETRY_SECONDS)
            former = await self._read()
        self._series.continue_from(former)
        self._content, self._goes_on = None, True

    async def end(self) -> None:
        """Write what is left."""
        if self._may_write:
            await _within(VOLUME_SECONDS, self._write())

    @property
    def _file(self) -> Path:
        return self._directory() / SERIES_FILE

    @property
    def _may_write(self) -> bool:
        return self._goes_on and self._is_new

    async def _read(self) -> Series | OSError:
        file = self._file
        try:
            return await asyncio.wrap_future(Background(lambda: read(file)).future)
        except OSError as error:
            return error

    def _write(self) -> Background[None]:
        self._is_new = False
        text, file = self.content().decode(), self._file
        return Background(lambda: write(file, text))


def read(file: Path) -> Series:
    """What a coordinator has written; no points where there is no file. One that is damaged, or of
    another release, is put aside: nobody writes over it. Raises OSError.
    """
    try:
        with file.open("rb") as stream:
            return Series.model_validate_json(stream.read(_MOST_BYTES))
    except FileNotFoundError:
        return Series()
    except ValueError:
        aside = file.with_suffix(".unreadable")
        file.replace(aside)
        log.warning("the points of the job's metrics in %s are unreadable: see %s", file, aside)
        return Series()


def write(file: Path, text: str) -> None:
    """Replace the file. A volume that refuses is no loss of training: it is only noted."""
    try:
        replace_text(file, text)
    except OSError as error:
        log.debug("cannot keep the series of the job in %s: %s", file, error)


async def _within(seconds: float, work: Background[None]) -> None:
    """Wait for the work, at most so long."""
    await asyncio.wait({asyncio.wrap_future(work.future)}, timeout=seconds)
