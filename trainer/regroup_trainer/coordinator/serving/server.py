"""The coordinator's server: HTTP and WebSocket in, effects out. `core` makes all decisions.

One task ticks the core. Each member has one connection: a newer one replaces the older.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
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
    ShownSteps,
    StatusLines,
    agents_in_contact,
    essence_of,
    handed_over,
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
from regroup_trainer.coordinator.handing_over import has_agents_on_node, is_between, somebody_leaves
from regroup_trainer.coordinator.serving.arrivals import (
    AgentConnection,
    Arrivals,
    send_frame,
)
from regroup_trainer.coordinator.serving.inbox import Inbox
from regroup_trainer.coordinator.serving.series_store import SeriesStore
from regroup_trainer.coordinator.serving.volume_work import VolumeWork
from regroup_trainer.protocol.agent_messages import ShortHello, agent_message
from regroup_trainer.protocol.desired import Desired, Lost
from regroup_trainer.protocol.generation import GenerationRecord, RecordWanted
from regroup_trainer.protocol.job_status import (
    SERIES_PATH,
    STEPS_PATH,
    WATCH_LINE_SECONDS,
    CoordinatorStatus,
)
from regroup_trainer.protocol.message import FRAME_BYTES, NAME_LIMIT, describe_invalid, quote
from regroup_trainer.protocol.rank_messages import Progress
from regroup_trainer.system.heartbeat_line import UPGRADE, Beat, HeartbeatReaders, Kind
from regroup_trainer.system.kept_file import KeptFile
from regroup_trainer.system.line_stream import LineStream
from regroup_trainer.system.server_connections import (
    IDLE_SECONDS,
    SPARE_CONNECTIONS,
    Connections,
)

BODY_BYTES = 256 * 1024
ROUNDS_OF_A_READ = 4
"""Of the event loop: what has arrived is found in one, and a message of an agent wakes the task of
its WebSocket in the next, which puts it into the inbox.
"""
LONGEST_DELAY_SECONDS = 60.0
"""A heartbeat that says it was later is taken for one that was so late."""
LONGEST_WAIT_SECONDS = 60.0
MOST_WATCHES = 4
"""At a time: of two operators, with a place each for one that has died without a word."""
BODY_SECONDS = 10.0
"""For the body of a request."""
PROGRESS_NEWS_SECONDS = 0.75
"""Least time between two statuses that differ only in their progress: less than between two reports
of it, so that none waits for the next.
"""
KEPT_SECONDS = 1.0
"""How old the seconds may be that the next process of this coordinator goes on with."""
_NOWHERE = KeptFile(None)

SLICE_SECONDS = 0.005
"""For messages of agents, before heartbeats are read again."""
UNSENT_BYTES = FRAME_BYTES
"""What an agent may leave unread, beyond what the kernel holds. One message may come on top."""
_DOES_NOT_READ = (
    "closing the connection of the agent %s, which does not read: %d KiB wait for it; it connects "
    "again"
)
_UNREADABLE = (
    "closing the connection of the agent %s: its message cannot be read (%s); it connects again. "
    "Run agent and coordinator from one release"
)
_TOO_OFTEN = (
    "too many have asked in this second: ask again in the next one, or with the job's token"
)
log = logging.getLogger(__name__)
_Model = TypeVar("_Model", bound=BaseModel)


class Server:
    """Passes messages to one core, and carries out its effects. What the next process goes on with
    is written to `kept`. `after_decision` is called with the monotonic time after each.
    """

    def __init__(
        self,
        core: Coordinator,
        token: str,
        kept: KeptFile = _NOWHERE,
        after_decision: Callable[[float], None] = lambda _now: None,
    ) -> None:
        self._core = core
        self._after_decision = after_decision
        self._token = token.encode()
        self._connections: dict[str, AgentConnection] = {}
        self._connection_changes = 0
        self._heartbeat_readers = HeartbeatReaders()
        self._inbox = Inbox[AgentConnection]()
        self._is_handling = False
        """Whether the inbox is about to be handled."""
        self._read_until = time.monotonic()
        """What has arrived by then was read: a later message may have arrived right after it."""
        self._arrivals = Arrivals(self._current_record)
        self._sent: BaseModel | None = None
        """The newest message, and its frame: what goes to many is serialised once."""
        self._frame = b""
        self._sequence = int(time.time() * 1000)
        self._published: object = None
        self._shown = ShownStatus(core.state)
        self._shown_steps = ShownSteps(core.state)
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
        self._volume = VolumeWork(core, self._do, self._give_way)
        self._series = SeriesStore(lambda: Path(core.state.desired.directory))
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
        app.router.add_get(SERIES_PATH, self._series_now)
        app.router.add_get(STEPS_PATH, self._steps_now)
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

    async def hand_over(self, seconds: float, drain_seconds: float) -> None:
        """Return when no agent needs this coordinator any more. It decides nothing from then on.

        A leaving agent needs a coordinator for its agreed last step. Agents that leave as well
        report it within `seconds`, those on this node within `drain_seconds`: a drain evicts them
        too, perhaps only at its next try. The others find a successor. That takes seconds to start,
        so a generation that has ended is followed by the next one first, within `drain_seconds`.
        The grace period of the pod is the limit.
        """
        await self._pass(seconds)
        await self._pass(drain_seconds, lambda: not has_agents_on_node(self._core.state))
        while somebody_leaves(self._core.state):
            async with self._news:
                await self._news.wait_for(lambda: not somebody_leaves(self._core.state))
            await self._pass(seconds)  # for the operator to read the result
        await self._pass(drain_seconds, lambda: not is_between(self._core.state))
        keeping = [] if self._over else [self._series.end()]  # else a successor's is there
        # Whoever asks to leave from now on asks the successor.
        await asyncio.gather(self._give_way(), *keeping)

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

    async def run(self) -> None:
        """Tick until cancelled."""
        self._spawn(self._series.load())
        while True:
            read_until, reported_until = await self._read()
            self._do(self._core.tick(time.monotonic(), read_until, reported_until))
            pause = self._core.pause(time.monotonic())
            self._tick_soon.clear()
            if pause > TICK_SECONDS:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._tick_soon.wait(), pause - TICK_SECONDS)
            await asyncio.sleep(TICK_SECONDS)

    async def _read(self) -> tuple[float, float]:
        """Read what this loop was too busy to read. Returns until when all heartbeats that have
        arrived are known, and until when all reports: they wait in the inbox. A connection that is
        not served yet may be that of any member.
        """
        now = time.monotonic()
        for _ in range(ROUNDS_OF_A_READ):
            await asyncio.sleep(0)
        self._heartbeat_readers.read()
        self._read_until = now
        known = min(now, self.connections.waits_since() or now)
        return known, min(known, self._inbox.waits_since() or now)

    @web.middleware
    async def _authenticate(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        # Since Python 3.12 aiohttp handles a request before the loop sees the end that follows it.
        await asyncio.sleep(0)
        if request.transport is None or request.transport.is_closing():
            return web.Response()  # to nobody: a peer that gave up costs no more than this
        self.connections.request(request.transport)
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if hmac.compare_digest(given, b"Bearer " + self._token):
            self.connections.prove(request.transport)
        else:
            self.connections.answer_unproven(request.transport)
            if request.path.startswith("/v1/"):
                raise web.HTTPUnauthorized(
                    text="wrong token: this job's own is in the Secret that its pods mount"
                )
        return await handler(request)

    # --- agents -----------------------------------------------------------------------------------

    async def _agent(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(max_msg_size=FRAME_BYTES, heartbeat=None)
        await socket.prepare(request)
        self.connections.hold(request.transport)
        hello = await self._arrivals.hello(socket)
        if hello is None or self._over or request.transport is None:
            return socket
        name = hello.member
        connection = AgentConnection(name, socket, request.transport)
        if (former := self._connections.get(name)) is not None:
            self._handle_all_of(former)
            self._spawn(former.close())
        self._connections[name] = connection
        self._connection_changes += 1
        self._do(self._core.on_message(hello, name, time.monotonic()))
        try:
            await self._listen(connection)
        finally:
            self._handle_all_of(connection)
            if self._connections.get(name) is connection:
                del self._connections[name]
                self._connection_changes += 1
                here = connection.closed_here
                self._do(self._core.on_closed(name, time.monotonic(), here=here))
        return socket

    def _current_record(self) -> GenerationRecord | None:
        current = self._core.state.current
        return current.record if current is not None else None

    async def _listen(self, connection: AgentConnection) -> None:
        """Put what arrives into the inbox, until the connection ends."""
        async for message in connection.socket:
            if message.type is not WSMsgType.TEXT:
                continue
            self._inbox.add(connection, message.data, self._read_until)
            self._handle_soon()
            while self._inbox.is_full(connection):
                await connection.await_room()

    def _handle_soon(self) -> None:
        if not self._is_handling:
            self._is_handling = True
            asyncio.get_running_loop().call_soon(self._handle_some)

    def _handle_some(self) -> None:
        """Handle messages for a moment. Others have their turn before the next ones."""
        self._is_handling = False
        until = time.monotonic() + SLICE_SECONDS
        while self._inbox and time.monotonic() < until:
            self._handle(*self._inbox.take())
        if self._inbox:
            self._handle_soon()

    def _handle_all_of(self, connection: AgentConnection) -> None:
        """A connection is over: handle what has arrived over it."""
        while (text := self._inbox.take_of(connection)) is not None:
            self._handle(connection, text)

    def _handle(self, connection: AgentConnection, text: str) -> None:
        connection.room.set()
        if self._connections.get(connection.name) is not connection or self._over:
            return
        try:
            message = agent_message.validate_json(text)
        except ValidationError as error:
            log.warning(_UNREADABLE, connection.name, describe_invalid(error))
            self._spawn(connection.close(WSCloseCode.POLICY_VIOLATION))
            return
        try:
            self._on_message(message, connection)
        except Exception:  # of ours: the others are handled all the same
            log.exception("closing the connection of the agent %s", connection.name)
            connection.abort()

    def _on_message(self, message: BaseModel, connection: AgentConnection) -> None:
        if isinstance(message, RecordWanted):  # of no concern to decisions, but a sign of life
            self._core.on_heartbeat(connection.name, time.monotonic())
            if (piece := self._arrivals.piece(message)) is not None:
                self._write(connection, piece)
            return
        if isinstance(message, ShortHello):
            hello = self._arrivals.of_known_generation(message)
            if hello is None:  # it connects again, and is asked for the record
                self._spawn(connection.close())
                return
            message = hello
        self._do(self._core.on_message(message, connection.name, time.monotonic()))

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

        self.connections.hand_over(transport)
        close = functools.partial(self.connections.close, transport)
        transport.set_protocol(self._heartbeat_readers.accept(transport, on_frame, close))
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
        return status.model_copy(
            update={"agents_in_contact": agents_in_contact(self._core.state, now)}
        )

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
            pauses = NEWS_SECONDS, NEWS_SECONDS
            if is_free:
                essence = essence_of(self._core.state, now)
                line = lines.next_line(essence, self._status_now, now)
                if line is not None:
                    await stream.send(line)
                pauses = lines.pauses(now)
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

    async def _series_now(self, request: web.Request) -> web.Response:
        is_known = self.connections.has_proven(request.transport)
        if not is_known and not self._series.may_answer_unproven(time.monotonic()):
            raise web.HTTPTooManyRequests(text=_TOO_OFTEN, headers={"Retry-After": "1"})
        return web.Response(body=self._series.content(), content_type="application/json")

    async def _steps_now(self, _request: web.Request) -> web.Response:
        text = self._shown_steps.text(time.monotonic())
        return web.Response(text=text, content_type="application/json")

    # --- effects ----------------------------------------------------------------------------------

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(member, message):
                    self._send(member, message)
                case Close(member):
                    self._close(member)
                case ReserveNumber():
                    self._spawn(self._volume.reserve(effect))
                case LookForFormer(term):
                    self._spawn(self._volume.look_for_former(term))
                case LookForCheckpoint():
                    self._spawn(self._volume.look_for_checkpoint(effect))
        if self._core.pause(time.monotonic()) <= TICK_SECONDS:
            self._tick_soon.set()
        self._keep()
        self._record()
        self._publish()
        self._after_decision(time.monotonic())

    def _send(self, member: str, message: BaseModel) -> None:
        connection = self._connections.get(member)
        if connection is None:
            return
        if message is not self._sent:
            self._sent, self._frame = message, self._arrivals.frame_of(message)
        self._write(connection, self._frame)

    def _write(self, connection: AgentConnection, frame: bytes) -> None:
        """Send a frame, unless the agent has left too much unread. It connects again when it reads
        on, and is sent what counts then.
        """
        if connection.unsent_bytes > UNSENT_BYTES:
            log.warning(_DOES_NOT_READ, connection.name, UNSENT_BYTES // 1024)
            connection.abort()
        else:
            self._spawn(send_frame(connection.socket, frame))

    def _close(self, member: str) -> None:
        connection = self._connections.pop(member, None)
        if connection is not None:
            self._connection_changes += 1
            self._spawn(connection.close())

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

    def _record(self) -> None:
        """Take the progress into the series, unless that is a successor's by now."""
        state = self._core.state
        if not self._over:
            size = state.current.world_size if state.current else 0
            now = time.monotonic()
            self._series.record(state.progress, size, now, state.wall(now))

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
            state.current.stall if state.current else None,
            state.desired.revision,
            events[-1].sequence if events else 0,
            self._connection_changes,
        )

    async def _wake(self) -> None:
        async with self._news:
            self._news.notify_all()


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
