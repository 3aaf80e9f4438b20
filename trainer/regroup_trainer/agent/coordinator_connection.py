"""The agent's WebSocket to the coordinator. It reconnects for ever; ranks train on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import NoReturn

import aiohttp
from pydantic import BaseModel, ValidationError

from regroup_trainer.agent.outbox import Outbox
from regroup_trainer.protocol.agent_messages import Hello
from regroup_trainer.protocol.coordinator_messages import (
    CoordinatorMessage,
    Refused,
    SentMessage,
    Welcome,
    sent_message,
)
from regroup_trainer.protocol.generation import GenerationNumber, RecordWanted
from regroup_trainer.protocol.message import FRAME_BYTES, describe_invalid
from regroup_trainer.protocol.record_transfer import OrderReceiver, RecordError, RecordPieces
from regroup_trainer.system.backoff import Patience, retry_seconds
from regroup_trainer.system.connection_errors import why_no_answer

FIRST_SECONDS, SOON_SECONDS, SOON_ATTEMPTS = 0.1, 0.4, 10
"""Longest pause after the first attempt to connect, longest one after the next ones, and how many
these are: a coordinator that is started anew listens after about two seconds.
"""
LATER_SECONDS = 1.0
"""The longest pause from then on."""
ATTEMPTS_BEFORE_WARNING = 10
"""Attempts in a row that fail before the log reports it."""
CONNECT_SECONDS = 2.0
"""For TCP, and beyond that for the handshake: longer, if the coordinator was too late before."""
CLOSE_SECONDS = 0.2
"""For the closing handshake: a coordinator that is gone does not answer it."""
PING_SECONDS = 8.0
"""Between pings. A connection over which none is answered within half of it counts as broken. That
the coordinator itself is gone, heartbeats show sooner.
"""
_MISFIT = (
    "the record of generation %s cannot be made of the one before (%s): fetching all of it. In a "
    "large job that takes seconds, and each worker that finds this does so. Run agents and "
    "coordinator from one release"
)
log = logging.getLogger(__name__)


class RejectedError(Exception):
    """The coordinator will never accept this agent: a wrong token or another protocol version."""


def longest_pause(attempts: int) -> float:
    """Seconds to wait after so many attempts in a row. Half of it is enough: all agents lose their
    coordinator at the same moment, and must not come back at the same moment too.
    """
    longest = SOON_SECONDS if attempts <= SOON_ATTEMPTS else LATER_SECONDS
    return retry_seconds(attempts, FIRST_SECONDS, longest)


class CoordinatorConnection:
    """The connection of an agent with so many ranks to its coordinator.

    Messages that are sent while it is down go out after the next hello.
    """

    def __init__(
        self,
        url: str,
        token: str,
        ranks: int,
        hello: Callable[[], Hello],
        on_message: Callable[[CoordinatorMessage], None],
    ) -> None:
        self.url = url.rstrip("/")
        """Of the coordinator."""
        self._headers = {"Authorization": f"Bearer {token}"}
        self._hello = hello
        self._on_message = on_message
        self._outbox = Outbox(ranks)
        self._filled = asyncio.Event()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._closing: asyncio.Task[bool] | None = None
        self._patience = Patience()
        self._problem = ""
        """Why the last attempt to connect failed."""
        self._pieces: RecordPieces | None = None
        """Of the record that a coordinator has asked for last."""
        self._misfit: GenerationNumber | None = None
        """The generation whose difference has been logged."""
        self.welcomed = False
        """Whether a coordinator has answered the hello of this connection."""
        self._welcomed_at = 0.0
        """Monotonic time of the last answer to a hello."""
        self.term: int | None = None
        """Of the coordinator that last answered a hello."""

    @property
    def _socket_url(self) -> str:
        return f"{self.url}/v1/agent"

    def send(self, message: BaseModel) -> None:
        """Queue a message."""
        self._outbox.add(message, time.monotonic())
        self._filled.set()

    def begin_generation(self, agents: int) -> None:
        """Forget the unsent reports of the generation before one of so many agents."""
        self._outbox.begin(agents)

    def resend_hello(self) -> None:
        """Send another hello, since this member's addresses have changed."""
        if self.welcomed:
            self.send(self._hello().shortened())

    def move(self, url: str) -> None:
        """Connect to this coordinator from now on."""
        if self.url != url.rstrip("/"):
            log.info("the coordinator is at %s now", url)
            self.url = url.rstrip("/")
            self._reconnect()

    def on_lost(self, shown_at: float) -> None:
        """The coordinator of this monotonic time did not know this member, or was gone. A hello
        that was answered later has made the member known: heartbeats from before it are answered
        after it, where hellos wait for a record.
        """
        if shown_at > self._welcomed_at:
            self._reconnect()

    def _reconnect(self) -> None:
        if self.welcomed and self._socket is not None:
            self._closing = asyncio.ensure_future(self._socket.close())

    async def run(self) -> NoReturn:
        """Keep the connection up until cancelled. Raises RejectedError."""
        attempts = 0
        # A Service's address may change with its pods: every attempt looks the name up anew.
        connector = aiohttp.TCPConnector(use_dns_cache=False, force_close=True)
        patience = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        async with aiohttp.ClientSession(
            connector=connector, headers=self._headers, timeout=patience
        ) as session:
            while True:
                if await self._connect_once(session):
                    attempts = 0
                attempts += 1
                if attempts == ATTEMPTS_BEFORE_WARNING:
                    log.warning(
                        "cannot connect to the coordinator at %s: %s; trying again",
                        self._socket_url,
                        self._problem,
                    )
                await asyncio.sleep(longest_pause(attempts) * random.uniform(0.5, 1.0))

    async def _connect_once(self, session: aiohttp.ClientSession) -> bool:
        """Serve one connection from its start to its end; returns whether it was welcomed."""
        self.welcomed, late = False, False
        try:
            socket = await self._connect(session)
            async with socket:
                self._socket = socket
                await self._talk(socket)
            late = isinstance(socket.exception(), TimeoutError)  # no answer to a ping
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 401:
                raise RejectedError(
                    "the coordinator refused the token (HTTP 401): mount this job's own Secret"
                ) from None
            self._problem = f"HTTP {error.status}"
        except ValidationError as error:
            self._problem = (
                f"its message cannot be read ({describe_invalid(error)}): run agent and "
                "coordinator from one release"
            )
        except RecordError as error:
            self._problem = str(error)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._problem = why_no_answer(error)
            late = isinstance(error, TimeoutError)
        welcomed, self.welcomed = self.welcomed, False
        if late or welcomed:
            self._patience.note(late=late)
        return welcomed

    async def _connect(self, session: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        """Raises as `ws_connect` does. No answer to TCP is a ClientError: nobody is there."""
        factor = self._patience.factor
        try:
            async with asyncio.timeout(CONNECT_SECONDS * (1.0 + factor)):
                return await session.ws_connect(
                    self._socket_url,
                    heartbeat=PING_SECONDS,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
                    max_msg_size=FRAME_BYTES,
                )
        except aiohttp.ConnectionTimeoutError as error:
            raise aiohttp.ClientConnectionError(why_no_answer(error)) from None

    async def _talk(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await socket.send_str(self._hello().shortened().model_dump_json())
        receiver = OrderReceiver(lambda: self._hello().record, self._on_misfit)
        sending: asyncio.Task[None] | None = None
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    continue
                parsed = sent_message.validate_json(message.data)
                if isinstance(parsed, Refused):
                    self._refused(parsed)
                    return
                if isinstance(parsed, Welcome) and sending is None:
                    self.welcomed, self.term = True, parsed.term
                    self._welcomed_at = time.monotonic()
                    sending = asyncio.create_task(self._flush(socket))
                if (answer := self._handle(receiver, parsed)) is not None:
                    await socket.send_str(answer.model_dump_json())
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.wait([sending])  # which does not hide that this task is cancelled

    def _handle(self, receiver: OrderReceiver, message: SentMessage) -> BaseModel | None:
        """Pass orders on; returns what the coordinator is answered at once."""
        if isinstance(message, RecordWanted):
            return self._piece(message)
        orders, wanted = receiver.receive(message)
        for order in orders:
            self._on_message(order)
        return wanted

    def _on_misfit(self, number: GenerationNumber, error: RecordError) -> None:
        """Each new connection brings the same difference again."""
        if number != self._misfit:
            log.warning(_MISFIT, number, error)
        self._misfit = number

    def _piece(self, wanted: RecordWanted) -> BaseModel | None:
        """A piece of the record that the hello has named."""
        record = self._hello().record
        if record is None or record.number != wanted.number:
            return None
        if self._pieces is None or self._pieces.record is not record:
            self._pieces = RecordPieces(record)
        return self._pieces.piece(wanted.piece)

    def _refused(self, message: Refused) -> None:
        """Give up after a final refusal. Another coordinator may accept what this one refused."""
        if message.final:
            raise RejectedError(f"the coordinator refused this agent: {message.reason}")
        if message.reason != self._problem:  # it is tried again within a second
            log.warning("the coordinator refused this agent for now: %s", message.reason)
        self._problem = message.reason

    async def _flush(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            message = self._outbox.take(time.monotonic())
            if message is None:
                await self._await_due()
                continue
            try:
                await socket.send_str(message.model_dump_json())
            except (aiohttp.ClientError, ConnectionError):
                self._outbox.give_back(message)
                return

    async def _await_due(self) -> None:
        """Wait until a message is due, or another is there."""
        self._filled.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._outbox.pause(time.monotonic())):
                await self._filled.wait()
