"""What the core wants of the volume, in threads: one that does not answer stops nobody."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.effects import Effect, LookForCheckpoint, ReserveNumber
from regroup_trainer.coordinator.serving.number_files import (
    SupersededError,
    has_checkpoint,
    newest_former,
    reserve,
)
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.system.background import Background

VOLUME_SECONDS = 5.0
"""A volume that does not answer for so long is reported."""

log = logging.getLogger(__name__)


class VolumeWork:
    """Hands the core what the volume answers. `do` carries out what the core wants then, and
    `give_way` leaves the job to a successor.
    """

    def __init__(
        self,
        core: Coordinator,
        do: Callable[[list[Effect]], None],
        give_way: Callable[[], Awaitable[None]],
    ) -> None:
        self._core = core
        self._do = do
        self._give_way = give_way
        self._look: Background[tuple[GenerationNumber, int] | None] | None = None
        """The last one for a former generation."""
        self._own: GenerationNumber | None = None
        """The first number that this process has reserved."""

    def _directory(self) -> Path:
        return Path(self._core.state.desired.directory)

    async def reserve(self, effect: ReserveNumber) -> None:
        """Reserve the number of a generation."""
        directory = self._directory()
        work = Background(lambda: reserve(directory, effect.number, self._own))
        answer = asyncio.wrap_future(work.future)
        if not (await asyncio.wait({answer}, timeout=VOLUME_SECONDS))[0]:
            why = f"the volume has not answered for {VOLUME_SECONDS:.0f} s"
            log.error("cannot reserve a generation number yet in %s: %s", directory, why)
            self._do(self._core.on_reservation_unanswered(why, time.monotonic()))
        try:
            number, newest = await answer
        except OSError as error:
            why = error.strerror or str(error)
            log.error("cannot reserve a generation number in %s: %s", directory, why)
            self._do(self._core.on_reservation_failed(why, time.monotonic()))
            return
        except SupersededError as error:
            log.error("term %s has begun: this coordinator decides nothing any more", error)
            await self._give_way()
            return
        self._own = self._own or number
        self._do(self._core.on_reserved(number, newest, time.monotonic()))

    async def look_for_former(self, term: int) -> None:
        """Find the newest generation of a former term."""
        directory = self._directory()
        if self._look is not None and not self._look.future.done():
            return  # the volume has not answered the last one
        self._look = Background(lambda: newest_former(directory, term))
        with contextlib.suppress(OSError):
            found = await asyncio.wrap_future(self._look.future)
            if found is not None:
                self._do(self._core.on_former(*found, time.monotonic()))

    async def look_for_checkpoint(self, wanted: LookForCheckpoint) -> None:
        """Find whether a checkpoint is there that a user wants to restart from."""
        directory = self._directory()
        look = Background(lambda: has_checkpoint(directory, wanted.step))
        with contextlib.suppress(OSError):  # the request stays pending, as while there is no answer
            found = await asyncio.wrap_future(look.future)
            self._do(self._core.on_checkpoint_looked_for(wanted.request, found, time.monotonic()))
