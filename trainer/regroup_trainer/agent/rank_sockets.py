"""The agent's Unix socket for its ranks: the other end of `regroup_trainer.protocol.channel`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from regroup_trainer.protocol.coordinator_messages import (
    Decide,
    Enter,
    LeaveGeneration,
    RankMessage,
)
from regroup_trainer.protocol.generation import Assignment, GenerationNumber
from regroup_trainer.protocol.message import describe_invalid
from regroup_trainer.protocol.rank_messages import (
    Busy,
    Finished,
    LastLine,
    RankReport,
    ScriptStep,
    rank_report,
)

_LINE_BYTES = 1 << 20
log = logging.getLogger(__name__)


class RankSockets:
    """Listens at `path`. `on_report` gets every report, of whatever generation."""

    def __init__(self, path: Path, on_report: Callable[[RankReport], None]) -> None:
        self.path = path
        self._on_report = on_report
        self._server: asyncio.Server | None = None
        self._writers: dict[tuple[GenerationNumber, int], asyncio.StreamWriter] = {}
        self._with_session: set[tuple[GenerationNumber, int]] = set()
        self._undelivered: list[Decide] = []

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(
            self._serve, str(self.path), limit=_LINE_BYTES
        )

    def decide(self, decision: Decide) -> None:
        """Send it to rank 0, or keep it until that rank has sent its first report."""
        writer = self._writers.get((decision.generation, 0))
        if writer is None:
            self._undelivered.append(decision)
        else:
            _send(writer, decision)

    def leave_generation(self, order: LeaveGeneration) -> None:
        """Send it to all connected ranks of that generation."""
        for (generation, _), writer in self._writers.items():
            if generation == order.generation:
                _send(writer, order)

    def has_session(self, generation: GenerationNumber, rank: int) -> bool:
        """Whether this rank has sent a report of a Session in this generation, dead or alive."""
        return (generation, rank) in self._with_session

    def enter(self, generation: GenerationNumber, rank: int, assignment: Assignment) -> None:
        """Have a parked rank enter a generation; `generation` and `rank` are what it was before."""
        writer = self._writers.pop((generation, rank), None)
        if writer is not None:  # else it has just died, and its end will be reported
            _send(writer, Enter(assignment=assignment))
            self._register((assignment.record.number, assignment.rank), writer)

    def forget(self) -> None:
        """Drop undelivered decisions and former ranks: a new generation has begun."""
        self._undelivered.clear()
        self._with_session.clear()

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers.values():
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # asyncio of Python 3.11 logs an error where this task ends as cancelled.
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await self._receive(reader, writer)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read the reports of a connection until it ends."""
        try:
            known = False
            while line := await reader.readline():
                report = rank_report.validate_json(line)
                if not known and not _is_of_script(report):
                    self._register((report.generation, report.rank), writer)
                    known = True
                self._on_report(report)
        except ValidationError as error:
            log.error(
                "closing the connection of a rank: its report cannot be read (%s). Run agent and "
                "program with one release of Regroup",
                describe_invalid(error),
            )
        finally:
            for key in [key for key, known_as in self._writers.items() if known_as is writer]:
                del self._writers[key]
            writer.close()
            await writer.wait_closed()

    def _register(self, key: tuple[GenerationNumber, int], writer: asyncio.StreamWriter) -> None:
        self._writers[key] = writer
        self._with_session.add(key)
        waiting = [decision for decision in self._undelivered if (decision.generation, 0) == key]
        self._undelivered = [decision for decision in self._undelivered if decision not in waiting]
        for decision in waiting:
            self.decide(decision)


def _is_of_script(report: RankReport) -> bool:
    """Whether a program without a Session may have sent it, which receives no orders."""
    if isinstance(report, Busy):
        return report.lasting
    return isinstance(report, ScriptStep | LastLine | Finished)


def _send(writer: asyncio.StreamWriter, message: RankMessage) -> None:
    writer.write(message.model_dump_json().encode() + b"\n")
