"""The Unix socket on which an agent's ranks report and hear decisions: the other end of `regroup_trainer.channel`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from regroup_trainer.contract import (
    Assignment,
    Decide,
    Enter,
    GenerationNumber,
    LeaveWorld,
    RankMessage,
    RankReport,
    rank_report,
)

_LINE_BYTES = 1 << 20
log = logging.getLogger(__name__)


class RankSockets:
    """Listens at `path`; `on_report` hears every report, of whatever generation."""

    def __init__(self, path: Path, on_report: Callable[[RankReport], None]) -> None:
        self.path = path
        self._on_report = on_report
        self._server: asyncio.Server | None = None
        self._writers: dict[tuple[GenerationNumber, int], asyncio.StreamWriter] = {}
        self._undelivered: list[Decide] = []

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._serve, str(self.path), limit=_LINE_BYTES)

    def decide(self, decision: Decide) -> None:
        """Tell rank 0; it waits until that rank has connected and said its first word."""
        writer = self._writers.get((decision.generation, 0))
        if writer is None:
            self._undelivered.append(decision)
        else:
            _tell(writer, decision)

    def leave_world(self, order: LeaveWorld) -> None:
        """Tell all ranks of that generation which are connected."""
        for (generation, _), writer in self._writers.items():
            if generation == order.generation:
                _tell(writer, order)

    def hears(self, generation: GenerationNumber, rank: int) -> bool:
        """Whether this rank has ever spoken: a program that has not may be one that does not listen either."""
        return (generation, rank) in self._writers

    def enter(self, generation: GenerationNumber, rank: int, assignment: Assignment) -> None:
        """Tell the rank that was this one in that generation what it is now."""
        writer = self._writers.pop((generation, rank), None)
        if writer is not None:  # else it has just died, and its end will be told
            _tell(writer, Enter(assignment=assignment))
            self._register((assignment.record.number, assignment.rank), writer)

    def forget(self) -> None:
        """A new generation has begun: no decision for an older one is of use."""
        self._undelivered.clear()

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers.values():
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            known = False
            while line := await reader.readline():
                report = rank_report.validate_json(line)
                if not known:
                    self._register((report.generation, report.rank), writer)
                    known = True
                self._on_report(report)
        except ValidationError as error:
            log.error("a rank sent what is no report: %s", error)
        except ConnectionError:
            pass
        finally:
            for key in [key for key, known_as in self._writers.items() if known_as is writer]:
                del self._writers[key]
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _register(self, key: tuple[GenerationNumber, int], writer: asyncio.StreamWriter) -> None:
        self._writers[key] = writer
        waiting = [decision for decision in self._undelivered if (decision.generation, 0) == key]
        self._undelivered = [decision for decision in self._undelivered if decision not in waiting]
        for decision in waiting:
            self.decide(decision)


def _tell(writer: asyncio.StreamWriter, message: RankMessage) -> None:
    writer.write(message.model_dump_json().encode() + b"\n")
