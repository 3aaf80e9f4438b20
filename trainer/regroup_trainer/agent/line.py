"""The WebSocket to the coordinator: connect, say hello, reconnect for ever. Ranks train on while it is down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import NoReturn

import aiohttp
from pydantic import BaseModel, ValidationError

from regroup_trainer.contract import CoordinatorMessage, Hello, Refused, Report, Welcome, coordinator_message

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 1.0
SILENT_ATTEMPTS = 10
"""In a row, before the log says that there is no line."""
CONNECT_SECONDS = 2.0
CLOSE_SECONDS = 0.2
"""A coordinator that is gone says no good-bye."""
PING_SECONDS = 2.0
"""A coordinator that does not answer a ping within half of it is taken for gone; the ranks don't notice."""
QUEUE_MESSAGES = 1000
log = logging.getLogger(__name__)


class RejectedError(Exception):
    """The coordinator will never accept this agent: wrong token, other protocol version."""


class Line:
    """One agent's line to its coordinator. Messages sent while it is down go out after the next hello."""

    def __init__(
        self, url: str, token: str, hello: Callable[[], Hello], on_message: Callable[[CoordinatorMessage], None]
    ) -> None:
        self._url = f"{url.rstrip('/')}/v1/agent"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._hello = hello
        self._on_message = on_message
        self._outbox: deque[BaseModel] = deque(maxlen=QUEUE_MESSAGES)
        self._filled = asyncio.Event()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._closing: asyncio.Task[bool] | None = None
        self._trouble = ""
        """Why the last attempt to connect failed."""
        self.welcomed = False
        """Whether a coordinator has answered the hello of this connection."""

    def send(self, message: BaseModel) -> None:
        """Queue a message."""
        self._outbox.append(message)
        self._filled.set()

    def drop_unsent_reports(self) -> None:
        """Forget what ranks of a generation that is over had still to say."""
        kept = [message for message in self._outbox if not isinstance(message, Report)]
        self._outbox.clear()
        self._outbox.extend(kept)

    def say_hello_again(self) -> None:
        """Tell what has changed about this member."""
        if self.welcomed:
            self.send(self._hello())

    def reconnect(self) -> None:
        """Give a connection up that ends at a coordinator which is gone: a new one has said that it knows us not."""
        if self.welcomed and self._socket is not None:
            self._closing = asyncio.ensure_future(self._socket.close())

    async def run(self) -> NoReturn:
        """Keep the line up until cancelled. Raises RejectedError."""
        pause, attempts = FIRST_PAUSE_SECONDS, 0
        # A Service's address may change with its pods: every attempt looks the name up anew.
        connector = aiohttp.TCPConnector(use_dns_cache=False, force_close=True)
        async with aiohttp.ClientSession(connector=connector, headers=self._headers) as session:
            while True:
                if await self._connection(session):
                    pause, attempts = FIRST_PAUSE_SECONDS, 0
                attempts += 1
                if attempts == SILENT_ATTEMPTS:
                    log.warning("no line to the coordinator, but trying on: %s: %s", self._url, self._trouble)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _connection(self, session: aiohttp.ClientSession) -> bool:
        """One connection, from its start to its end; whether it was welcomed."""
        self.welcomed = False
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                patience = aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS)
                socket = await session.ws_connect(self._url, heartbeat=PING_SECONDS, timeout=patience)
            async with socket:
                self._socket = socket
                await self._talk(socket)
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 401:
                raise RejectedError("the coordinator refused the token (HTTP 401): is it this job's token?") from None
            self._trouble = f"HTTP {error.status}"
        except (aiohttp.ClientError, OSError, TimeoutError, ValidationError) as error:
            self._trouble = str(error) or type(error).__name__
        welcomed, self.welcomed = self.welcomed, False
        return welcomed

    async def _talk(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await socket.send_str(self._hello().model_dump_json())
        sending: asyncio.Task[None] | None = None
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    continue
                parsed = coordinator_message.validate_json(message.data)
                if isinstance(parsed, Refused):
                    self._refused(parsed)
                    return
                if isinstance(parsed, Welcome) and sending is None:
                    self.welcomed = True
                    sending = asyncio.create_task(self._flush(socket))
                self._on_message(parsed)
        finally:
            if sending is not None:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sending

    def _refused(self, message: Refused) -> None:
        """A refusal that may pass (a coordinator of a term that is over) closes the connection; the next may do."""
        if message.final:
            raise RejectedError(f"the coordinator refused this agent: {message.reason}")
        self._trouble = message.reason
        log.warning("refused for now: %s", message.reason)

    async def _flush(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            while self._outbox:
                message = self._outbox.popleft()
                try:
                    await socket.send_str(message.model_dump_json())
                except (aiohttp.ClientError, ConnectionError):
                    self._outbox.appendleft(message)
                    return
            self._filled.clear()
            await self._filled.wait()
