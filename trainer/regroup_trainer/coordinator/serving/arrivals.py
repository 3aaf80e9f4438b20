"""The hellos of agents, each with the record that it names.

An agent's hello names its generation by number. A coordinator that does not know the record of that
generation, since its predecessor began it, asks agents for it in pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import WSCloseCode, WSMsgType, web
from pydantic import BaseModel, ValidationError

from regroup_trainer.coordinator.serving.known_records import KnownRecords
from regroup_trainer.protocol.agent_messages import Hello, ShortHello
from regroup_trainer.protocol.coordinator_messages import Begin, Refused
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    GenerationRecord,
    RecordPiece,
    RecordWanted,
)
from regroup_trainer.protocol.message import (
    PROTOCOL_VERSION,
    TEXT_LIMIT,
    describe_invalid,
    quote,
)
from regroup_trainer.protocol.record_transfer import RecordIntake

HELLO_SECONDS = 10.0
"""For the first message of an agent."""
MOST_ASKED = 3
"""Agents that are asked for a record at the same time, so that one which does not answer delays
nobody.
"""
PIECE_SECONDS = 2.0
"""For an agent to send a piece of a record."""
RECORD_SECONDS = 10.0
"""For the whole record."""

_NO_RECORD = "closing the connection of the agent %s, which did not send its record of %s: %s"
log = logging.getLogger(__name__)


@dataclass(eq=False)
class AgentConnection:
    """The WebSocket of an agent that has sent its hello."""

    name: str
    socket: web.WebSocketResponse
    transport: asyncio.Transport
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when one of its messages has left the inbox."""
    closed_here: bool = False
    """Whether this process closes it, so that its end says nothing of the agent."""

    def abort(self) -> None:
        """Close it at once, from here."""
        self.closed_here = True
        self.transport.abort()

    async def close(self, code: WSCloseCode = WSCloseCode.OK) -> None:
        """Close it from here, as `close` does."""
        self.closed_here = True
        await close(self.socket, code)

    @property
    def unsent_bytes(self) -> int:
        """What the kernel has not taken yet."""
        return self.transport.get_write_buffer_size()

    async def await_room(self) -> None:
        """Wait until one of its messages has left the inbox."""
        self.room.clear()
        await self.room.wait()


class Arrivals:
    """Reads the hellos, and keeps the records that they name. `current` gives the record of the
    generation that runs.
    """

    def __init__(self, current: Callable[[], GenerationRecord | None]) -> None:
        self._current = current
        self._records = KnownRecords()
        self._asked = asyncio.Semaphore(MOST_ASKED)
        self._arriving: dict[str, web.WebSocketResponse] = {}
        """The newest connection of each agent whose hello waits for the record that it names."""

    async def hello(self, socket: web.WebSocketResponse) -> Hello | None:
        """The first message of a connection; None: the connection is of no use."""
        short = await _first_message(socket)
        return await self._whole(short, socket) if short is not None else None

    def of_known_generation(self, short: ShortHello) -> Hello | None:
        """A later hello of a connection; None: its agent has to be asked for its record."""
        record = self._record(short.generation) if short.generation else None
        if short.generation is not None and record is None:
            return None
        return short.with_record(record)

    def frame_of(self, message: BaseModel) -> bytes:
        """A message as agents get it."""
        sent = self._records.begin(message.record) if isinstance(message, Begin) else message
        return sent.model_dump_json().encode()

    def piece(self, wanted: RecordWanted) -> bytes | None:
        """The answer to an agent, as a frame; None: there is none."""
        return self._records.piece(wanted)

    async def _whole(self, short: ShortHello, socket: web.WebSocketResponse) -> Hello | None:
        """The hello with its record. None: the agent has another connection now, or did not send
        the record, which is then asked of another agent; this one connects again.
        """
        self._arriving[short.member] = socket
        try:
            record = await self._record_of(short, socket)
            newest = self._arriving.get(short.member) is socket
            return short.with_record(record) if newest else None
        except (ValueError, TimeoutError, ConnectionError) as error:
            why = describe_invalid(error) if isinstance(error, ValidationError) else str(error)
            log.warning(_NO_RECORD, short.pod, short.generation, why or "it does not answer")
            await close(socket)
            return None
        finally:
            if self._arriving.get(short.member) is socket:
                del self._arriving[short.member]

    async def _record_of(
        self, short: ShortHello, socket: web.WebSocketResponse
    ) -> GenerationRecord | None:
        """The record that a hello names. Raises as `_fetch`."""
        number = short.generation
        if number is None:
            return None
        if (known := self._record(number)) is not None:
            return known
        async with self._asked:
            if (known := self._record(number)) is not None:
                return known
            async with asyncio.timeout(RECORD_SECONDS):
                fetched = await _fetch(socket, number)
            record = self._record(number) or fetched  # another may have come first
            self._records.add(record)
            return record

    def _record(self, number: GenerationNumber) -> GenerationRecord | None:
        current = self._current()
        if current is not None and current.number == number:
            return current
        return self._records.get(number)


def read_hello(text: str) -> ShortHello | Refused:
    """The first message; a refusal where it is no hello of our protocol version.

    The version is read first: the hello of another version may have other fields.
    """
    try:
        protocol = json.loads(text)["protocol"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return Refused(
            reason="the first message must be a hello with a protocol version", final=True
        )
    if protocol != PROTOCOL_VERSION:
        reason = (
            f"the agent speaks protocol version {quote(protocol)}, this coordinator version "
            f"{PROTOCOL_VERSION}: run both from the same release"
        )
        return Refused(reason=reason, final=True)
    try:
        return ShortHello.model_validate_json(text)
    except ValidationError as error:
        return Refused(
            reason=f"the agent's hello is not valid: {describe_invalid(error)}: run agent and "
            "coordinator from one release"[:TEXT_LIMIT],
            final=True,
        )


async def send_frame(socket: web.WebSocketResponse, frame: bytes) -> None:
    """Send a text frame, unless the connection has closed."""
    with contextlib.suppress(ConnectionError):
        await socket.send_frame(frame, WSMsgType.TEXT)


async def close(socket: web.WebSocketResponse, code: WSCloseCode = WSCloseCode.OK) -> None:
    """Send the code of closing, unless the connection has closed; what still waits to be sent is
    dropped.
    """
    with contextlib.suppress(ConnectionError):
        await socket.close(code=code, drain=False)


async def _first_message(socket: web.WebSocketResponse) -> ShortHello | None:
    """None when it was refused, with the reason sent."""
    try:
        first = await socket.receive(timeout=HELLO_SECONDS)
    except TimeoutError:
        await socket.close(drain=False)
        return None
    if first.type is not WSMsgType.TEXT:
        return None
    hello = read_hello(first.data)
    if isinstance(hello, ShortHello):
        return hello
    log.warning("refused an agent: %s", hello.reason)
    await socket.send_str(hello.model_dump_json())
    await socket.close()
    return None


async def _fetch(socket: web.WebSocketResponse, number: GenerationNumber) -> GenerationRecord:
    """The record of a generation, which this agent has. Raises ValueError, TimeoutError,
    ConnectionError.
    """
    intake = RecordIntake(number)
    while True:
        await socket.send_str(intake.wanted.model_dump_json())
        answer = await socket.receive(timeout=PIECE_SECONDS)
        if answer.type is not WSMsgType.TEXT:
            raise ConnectionError("its connection closed")
        record = intake.add(RecordPiece.model_validate_json(answer.data))
        if record is not None:
            return record
