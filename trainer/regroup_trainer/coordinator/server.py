"""The coordinator's server: HTTP and WebSocket in, effects out. `core` makes all decisions.

One task ticks the core. Each member has one connection: a newer one replaces the older.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from aiohttp import WSCloseCode, WSMsgType, web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ValidationError

from regroup_trainer.coordinator.coordinator_metrics import make_registry
from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.coordinator_status import (
    NEWS_SECONDS,
    ShownStatus,
    StatusLines,
    handed_over,
    heard_of,
    message_of,
    phase_of,
)
from regroup_trainer.coordinator.core import TICK_SECONDS, Coordinator
from regroup_trainer.coordinator.effects import (
    Close,
    Effect,
    LookForCheckpoint,
    LookForFormer,
    ReserveNumber,
    Send,
)
from regroup_trainer.coordinator.formation import least_workers
from regroup_trainer.coordinator.known_records import KnownRecords
from regroup_trainer.coordinator.number_files import (
    SupersededError,
    has_checkpoint,
    newest_former,
    reserve,
)
from regroup_trainer.protocol.agent_messages import Hello, ShortHello, agent_message
from regroup_trainer.protocol.coordinator_messages import Begin, Refused
from regroup_trainer.protocol.desired import Desired, Lost
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    GenerationRecord,
    RecordPiece,
    RecordWanted,
)
from regroup_trainer.protocol.job_status import WATCH_LINE_SECONDS, CoordinatorStatus
from regroup_trainer.protocol.message import (
    FRAME_BYTES,
    NAME_LIMIT,
    PROTOCOL_VERSION,
    TEXT_LIMIT,
    describe_invalid,
    quote,
)
from regroup_trainer.protocol.rank_messages import Progress
from regroup_trainer.protocol.record_transfer import RecordIntake
from regroup_trainer.system.background import Background
from regroup_trainer.system.heartbeat_line import UPGRADE, Beat, HeartbeatReader, Kind
from regroup_trainer.system.kept_file import KeptFile
from regroup_trainer.system.line_stream import LineStream
from regroup_trainer.system.server_connections import (
    IDLE_SECONDS,
    SPARE_CONNECTIONS,
    Connections,
)

BODY_BYTES = 256 * 1024
ROUNDS_OF_A_READ = 2
"""Of the event loop: what has arrived is found in one, and handled in the next."""
LONGEST_DELAY_SECONDS = 60.0
"""A heartbeat that says it was later is taken for one that was so late."""
LONGEST_WAIT_SECONDS = 60.0
MOST_WATCHES = 4
"""At a time: of two operators, with a place each for one that has died without a word."""
MOST_ASKED = 3
"""Agents that are asked for a record at the same time, so that one which does not answer delays
nobody.
"""
PIECE_SECONDS = 2.0
"""For an agent to send a piece of a record."""
RECORD_SECONDS = 10.0
"""For the whole record."""
BODY_SECONDS = 10.0
"""For the body of a request, and for the first message of an agent."""
VOLUME_SECONDS = 5.0
"""A volume that does not answer for so long is reported."""
PROGRESS_NEWS_SECONDS = 0.75
"""Least time between two statuses that differ only in their progress: less than between two reports
of it, so that none waits for the next.
"""
KEPT_SECONDS = 1.0
"""How old the seconds may be that the next process of this coordinator goes on with."""
_NOWHERE = KeptFile(None)

_UNREADABLE = (
    "closing the connection of the agent %s: its message cannot be read (%s); it connects again. "
    "Run agent and coordinator from one release"
)
_NO_RECORD = "closing the connection of the agent %s, which did not send its record of %s: %s"
log = logging.getLogger(__name__)
_Model = TypeVar("_Model", bound=BaseModel)


class Server:
    """Passes messages to one core, and carries out its effects. What the next process goes on with
    is written to `kept`.
    """

    def __init__(self, core: Coordinator, token: str, kept: KeptFile = _NOWHERE) -> None:
        self._core = core
        self._token = token.encode()
        self._connections: dict[str, web.WebSocketResponse] = {}
        self._connection_changes = 0
        self._arriving: dict[str, web.WebSocketResponse] = {}
        """The newest connection of each agent whose hello waits for the record that it names."""
        self._records = KnownRecords()
        self._asked = asyncio.Semaphore(MOST_ASKED)
        self._sent: BaseModel | None = None
        """The newest message, and its frame: what goes to many is serialised once."""
        self._frame = b""
        self._sequence = int(time.time() * 1000)
        self._published: object = None
        self._shown = ShownStatus(core.state)
        self._progress_published_at = 0.0
        self._last_progress: Progress | None = None
        self._kept_file = kept
        self._kept: object = None
        self._kept_at = 0.0
        self._news = asyncio.Condition()
        self._watches: list[LineStream] = []
        """The oldest first."""
        self._tick_soon = asyncio.Event()
        """Set to have the next tick soon."""
        self._over = False
        """Whether a successor decides now."""
        self._look: Background[tuple[GenerationNumber, int] | None] | None = None
        """The last one for a former generation."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = Connections(self._most_connections)
        self._registry: CollectorRegistry = make_registry(core.state)

    def application(self) -> web.Application:
        """The routes. Those below /v1 require the token."""
        app = web.Application(client_max_size=BODY_BYTES, middlewares=[self._authenticate])
        app.router.add_get("/v1/agent", self._agent)
        app.router.add_get(r"/v1/heartbeats/{index:\d{1,6}}", self._heartbeats)
        app.router.add_post("/v1/heartbeat/{member}", self._heartbeat)
        app.router.add_post(r"/v1/importing/{index:\d{1,6}}", self._importing)
        app.router.add_get("/v1/status", self._status)
        app.router.add_get("/v1/watch", self._watch)
        app.router.add_put("/v1/desired", self._desired)
        app.router.add_post("/v1/lost", self._lost)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._metrics)
        return app

    @contextlib.asynccontextmanager
    async def serve(self, address: str | None, port: int) -> AsyncIterator[int]:
        """Serve on a port (0: any free one), which is yielded. Raises OSError."""
        runner = web.AppRunner(
            self.application(),
            access_log=None,
            shutdown_timeout=1.0,
            keepalive_timeout=IDLE_SECONDS,
        )
        listening = await self.connections.listen(runner, address, port)
        try:
            yield listening.addresses[0][1]
        finally:
            await self._end()
            await listening.cleanup()

    def _most_connections(self) -> int:
        """Two for each worker: its WebSocket and its heartbeats. Workers that have to go still have
        theirs.
        """
        state = self._core.state
        return 2 * max(state.desired.workers, len(state.members)) + SPARE_CONNECTIONS

    async def hand_over(self, seconds: float, company_seconds: float) -> None:
        """Return when no agent needs this coordinator any more. It decides nothing from then on.

        A leaving agent needs a coordinator for its agreed last step. Agents that leave as well
        report it within `seconds`, those on this node within `company_seconds`: a drain evicts them
        too, perhaps only at its next try. The others find a successor. That takes seconds to start,
        so a generation that has ended is followed by the next one first, within `company_seconds`.
        The grace period of the pod is the limit.
        """
        await self._pass(seconds)
        await self._pass(company_seconds, lambda: not self._has_company())
        while self._somebody_leaves():
            async with self._news:
                await self._news.wait_for(lambda: not self._somebody_leaves())
            await self._pass(seconds)  # for the operator to read the result
        await self._pass(company_seconds, lambda: not self._is_between())
        await self._give_way()  # whoever asks to leave from now on asks the successor

    async def _give_way(self) -> None:
        """Leave all agents to the successor."""
        await self._end()
        for member in list(self._connections):
            self._close(member)

    async def _end(self) -> None:
        """Decide nothing from now on, and end the watches."""
        self._over = True
        await self._wake()

    async def _pass(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Wait so long, or until it is enough, or no agent is connected."""
        await self._await_news(seconds, lambda: not self._connections or enough())

    async def _await_news(self, seconds: float, holds: Callable[[], bool]) -> None:
        """Wait so long, or until this holds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(holds)

    def _has_company(self) -> bool:
        """Whether an agent on this node may leave as well, and has not said so."""
        state = self._core.state
        return any(
            member.hello.node == state.node and member.leaving is None
            for member in state.members.values()
        )

    def _somebody_leaves(self) -> bool:
        return any(member.leaving is not None for member in self._core.state.members.values())

    def _is_between(self) -> bool:
        """Whether a generation has ended, and there are workers enough for the next one."""
        state = self._core.state
        if state.current is None or state.current.alive or state.outcome is not None:
            return False
        staying = [member for member in state.members.values() if member.leaving is None]
        return len(staying) >= least_workers(state.desired)

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            read_until = await self._read_before_a_loss()
            self._do(self._core.tick(time.monotonic(), read_until))
            pause = self._core.pause(time.monotonic())
            self._tick_soon.clear()
            if pause > TICK_SECONDS:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._tick_soon.wait(), pause - TICK_SECONDS)
            await asyncio.sleep(TICK_SECONDS)

    async def _read_before_a_loss(self) -> float:
        """Until when all heartbeats that have arrived are known. Before a member is lost by its
        silence, what this loop was too busy to read is read.
        """
        now, state = time.monotonic(), self._core.state
        if state.members.expired(state.desired, now):
            for _ in range(ROUNDS_OF_A_READ):
                await asyncio.sleep(0)
        return now

    @web.middleware
    async def _authenticate(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.transport is None or request.transport.is_closing():
            return web.Response()  # to nobody: a peer that gave up costs no more than this
        self.connections.request(request.transport)
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if hmac.compare_digest(given, b"Bearer " + self._token):
            self.connections.prove(request.transport)
        elif request.path.startswith("/v1/"):
            raise web.HTTPUnauthorized(
                text="wrong token: this job's own is in the Secret that its pods mount"
            )
        return await handler(request)

    # --- agents -----------------------------------------------------------------------------------

    async def _agent(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(max_msg_size=FRAME_BYTES, heartbeat=None)
        await socket.prepare(request)
        self.connections.hold(request.transport)
        short = await self._hello(socket)
        hello = await self._whole(short, socket) if short is not None else None
        if hello is None or self._over:
            return socket
        name = hello.member
        former = self._connections.get(name)
        self._connections[name] = socket
        self._connection_changes += 1
        if former is not None:
            self._spawn(_close(former))
        self._do(self._core.on_message(hello, name, time.monotonic()))
        try:
            await self._listen(socket, name)
        finally:
            if self._connections.get(name) is socket:
                del self._connections[name]
                self._connection_changes += 1
                self._do(self._core.on_closed(name, time.monotonic()))
        return socket

    async def _hello(self, socket: web.WebSocketResponse) -> ShortHello | None:
        """The first message; None when it was refused, with the reason sent."""
        try:
            first = await socket.receive(timeout=BODY_SECONDS)
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
            await _close(socket)
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
        current = self._core.state.current
        if current is not None and current.number == number:
            return current.record
        return self._records.get(number)

    async def _listen(self, socket: web.WebSocketResponse, name: str) -> None:
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                continue
            try:
                parsed = agent_message.validate_json(message.data)
            except ValidationError as error:
                log.warning(_UNREADABLE, name, describe_invalid(error))
                await socket.close(code=WSCloseCode.POLICY_VIOLATION)
                return
            if isinstance(parsed, RecordWanted):
                await self._send_piece(socket, parsed)
            elif self._connections.get(name) is socket and not self._over:
                self._on_message(parsed, name, socket)
            # What has arrived is read without a pause otherwise, and heartbeats would wait for it.
            await asyncio.sleep(0)

    def _on_message(self, message: BaseModel, name: str, socket: web.WebSocketResponse) -> None:
        if isinstance(message, ShortHello):
            number = message.generation
            record = self._record(number) if number else None
            if number is not None and record is None:
                self._spawn(_close(socket))  # it connects again, and is asked for the record
                return
            message = message.with_record(record)
        self._do(self._core.on_message(message, name, time.monotonic()))

    async def _send_piece(self, socket: web.WebSocketResponse, wanted: RecordWanted) -> None:
        """One that does not read waits here, and nobody waits for it."""
        piece = self._records.piece(wanted)
        if piece is not None:
            await _send(socket, piece.model_dump_json().encode())

    async def _heartbeats(self, request: web.Request) -> web.Response:
        """Frames of an agent, over the connection of this request."""
        name, transport = request.query.get("member", "")[:NAME_LIMIT], request.transport
        if not name or request.headers.get("Upgrade") != UPGRADE:
            raise web.HTTPBadRequest(text=f"an upgrade to {UPGRADE}, for a member, is expected")
        assert transport is not None, "_authenticate has looked"
        index = int(request.match_info["index"])

        def on_frame(frame: Beat) -> bool:
            self.connections.request(transport)
            return self._on_frame(index, name, frame)

        reader = HeartbeatReader(transport, on_frame, lambda: self.connections.close(transport))
        self.connections.hand_over(transport, reader)
        reader.begin()
        return web.Response()  # to nobody

    def _on_frame(self, index: int, name: str, frame: Beat) -> bool:
        """Whether its sender is known, or need not be."""
        now = time.monotonic()
        if frame.kind is Kind.IMPORTING:
            self._core.on_importing(index, name, now)
            return True
        return self._core.on_heartbeat(name, now, min(frame.delay, LONGEST_DELAY_SECONDS))

    async def _heartbeat(self, request: web.Request) -> web.Response:
        """A request of an agent that gets no frames through."""
        delay = min(max(0.0, _number(request, "delay", 0)), LONGEST_DELAY_SECONDS)
        known = self._core.on_heartbeat(request.match_info["member"], time.monotonic(), delay)
        return web.Response(status=204 if known else 404)

    async def _importing(self, request: web.Request) -> web.Response:
        name = request.query.get("member", "")[:NAME_LIMIT]
        self._core.on_importing(int(request.match_info["index"]), name, time.monotonic())
        return web.Response(status=204)

    # --- operator ---------------------------------------------------------------------------------

    async def _status(self, request: web.Request) -> web.Response:
        after, wait = (
            _number(request, "after", -1),
            min(_number(request, "wait", 0), LONGEST_WAIT_SECONDS),
        )
        await self._await_news(wait, lambda: self._sequence > after)
        text = self._status_now(after).model_dump_json()
        return web.Response(text=text, content_type="application/json")

    def _status_now(self, after: float = -1) -> CoordinatorStatus:
        """The status, with a sequence above `after` where there is one."""
        now = time.monotonic()
        status = self._shown.at(now, self._sequence, self._published, after)
        return status.model_copy(update={"heard": heard_of(self._core.state, now)})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        least, longest = WATCH_LINE_SECONDS
        every = min(max(least, _number(request, "every", least)), longest)
        stream = await LineStream.begin(request)
        self.connections.hold(request.transport)
        if len(self._watches) >= MOST_WATCHES:
            self._watches.pop(0).drop()
        self._watches.append(stream)
        try:
            await self._send_lines(stream, StatusLines(every, random.random))
        except (ConnectionError, TimeoutError):
            stream.drop()
        finally:
            if stream in self._watches:
                self._watches.remove(stream)
        return stream.response

    async def _send_lines(self, stream: LineStream, lines: StatusLines) -> None:
        """Until this coordinator is over. Raises as `stream` does."""
        while not self._over:
            seen, now, is_free = self._sequence, time.monotonic(), stream.is_free()
            line = lines.next_line(self._status_now(), now) if is_free else None
            if line is not None:
                await stream.send(line)
            pauses = lines.pauses(now) if is_free else (NEWS_SECONDS, NEWS_SECONDS)
            await self._await_line(seen, *pauses)

    async def _await_line(self, seen: int, pause: float, longest: float) -> None:
        """Wait `pause`, then for a change since the sequence `seen`; `longest` in all."""
        await self._await_news(pause, lambda: self._over)
        await self._await_news(longest - pause, lambda: self._over or self._sequence > seen)

    async def _desired(self, request: web.Request) -> web.Response:
        self._do(self._core.update_desired(await _body(request, Desired), time.monotonic()))
        return web.Response(status=204)

    async def _lost(self, request: web.Request) -> web.Response:
        self._do(self._core.on_lost(await _body(request, Lost), time.monotonic()))
        return web.Response(status=204)

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    # --- effects ----------------------------------------------------------------------------------

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(member, message):
                    self._send(member, message)
                case Close(member):
                    self._close(member)
                case ReserveNumber():
                    self._spawn(self._reserve(effect))
                case LookForFormer(term):
                    self._spawn(self._look_for_former(term))
                case LookForCheckpoint(request, step):
                    self._spawn(self._look_for_checkpoint(request, step))
        if self._core.pause(time.monotonic()) <= TICK_SECONDS:
            self._tick_soon.set()
        self._keep()
        self._publish()

    def _send(self, member: str, message: BaseModel) -> None:
        socket = self._connections.get(member)
        if socket is None:
            return
        if message is not self._sent:
            self._sent, self._frame = message, self._frame_of(message)
        self._spawn(_send(socket, self._frame))

    def _frame_of(self, message: BaseModel) -> bytes:
        sent = self._records.begin(message.record) if isinstance(message, Begin) else message
        return sent.model_dump_json().encode()

    def _close(self, member: str) -> None:
        socket = self._connections.pop(member, None)
        if socket is not None:
            self._connection_changes += 1
            self._spawn(_close(socket))

    async def _reserve(self, effect: ReserveNumber) -> None:
        directory = Path(self._core.state.desired.directory)
        work = Background(lambda: reserve(directory, effect.number))
        answer = asyncio.wrap_future(work.future)
        if not (await asyncio.wait({answer}, timeout=VOLUME_SECONDS))[0]:
            why = f"the volume has not answered for {VOLUME_SECONDS:.0f} s"
            log.error("cannot reserve a generation number yet in %s: %s", directory, why)
            self._do(self._core.on_reservation_silent(why, time.monotonic()))
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
        self._do(self._core.on_reserved(number, newest, time.monotonic()))

    async def _look_for_former(self, term: int) -> None:
        directory = Path(self._core.state.desired.directory)
        if self._look is not None and not self._look.future.done():
            return  # the volume has not answered the last one
        self._look = Background(lambda: newest_former(directory, term))
        with contextlib.suppress(OSError):
            found = await asyncio.wrap_future(self._look.future)
            if found is not None:
                self._do(self._core.on_former(*found, time.monotonic()))

    async def _look_for_checkpoint(self, request: str, step: int) -> None:
        directory = Path(self._core.state.desired.directory)
        look = Background(lambda: has_checkpoint(directory, step))
        with contextlib.suppress(OSError):  # the request stays pending, as while there is no answer
            found = await asyncio.wrap_future(look.future)
            self._do(self._core.on_checkpoint_looked_for(request, found, time.monotonic()))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _publish(self) -> None:
        """Answer the long polls when the status has changed."""
        state, now = self._core.state, time.monotonic()
        progressed = (
            state.progress is not self._last_progress
            and now - self._progress_published_at > PROGRESS_NEWS_SECONDS
        )
        content = self._content_of(state)
        if content == self._published and not progressed:
            return
        self._published, self._last_progress = content, state.progress
        self._progress_published_at = now
        self._sequence += 1
        self._spawn(self._wake())

    def _keep(self) -> None:
        """Have the next process go on with this state. What was counted, and which request has its
        answer, is kept at once.
        """
        state, now = self._core.state, time.monotonic()
        pending = state.pending_request, state.pending_restart
        counts = (state.desired.revision, state.account.counts, pending)
        if counts != self._kept or now - self._kept_at > KEPT_SECONDS:
            self._kept, self._kept_at = counts, now
            self._kept_file.write(handed_over(state).model_dump_json())

    def _content_of(self, state: State) -> object:
        """Equal as long as nothing but the progress changes."""
        phase, events = phase_of(state), state.journal.events()
        return (
            phase,
            message_of(state) if phase != "running" else "",
            state.current.number if state.current else None,
            state.members.revision,
            state.checkpoint,
            state.pending_request,
            state.checkpoint_answer,
            state.pending_restart,
            state.restart_answer,
            state.evaluation,
            state.volume.problem is not None,
            state.desired.revision,
            events[-1].sequence if events else 0,
            self._connection_changes,
        )

    async def _wake(self) -> None:
        async with self._news:
            self._news.notify_all()


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


async def _send(socket: web.WebSocketResponse, frame: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        await socket.send_frame(frame, WSMsgType.TEXT)


async def _close(socket: web.WebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):
        await socket.close(drain=False)


def _number(request: web.Request, name: str, default: float) -> float:
    text = request.query.get(name, "")
    with contextlib.suppress(ValueError):
        number = float(text or default)
        if math.isfinite(number):
            return number
    raise web.HTTPBadRequest(text=f"{name}={quote(text)} is not a number")


async def _body(request: web.Request, model: type[_Model]) -> _Model:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.read()
        return model.model_validate_json(body)
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"no whole body within {BODY_SECONDS:.0f} s") from None
    except ValidationError as error:
        raise web.HTTPUnprocessableEntity(text=describe_invalid(error)) from None
