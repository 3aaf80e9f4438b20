"""The operator's connection to the coordinators: one long poll per job, and its requests to them
and to agents.

The operator calls the IP of the coordinator pod that the job's UID owns: no names, no redirects, a
time limit and a size limit. The answer is validated. An answer with news puts the job's key on the
queue; a new step alone is not news.

Each poll has its own connection, so that none waits for another. How often all of them together ask
is limited: with more than 80 jobs the pauses grow. Large answers of a namespace are read in turn.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from weakref import WeakValueDictionary

import aiohttp

from regroup_operator.api.resource import Key
from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS
from regroup_operator.controller.agent_survey import (
    QUESTIONS_AT_ONCE,
    TURN_SECONDS,
    Agent,
)
from regroup_operator.controller.followed_coordinator import (
    FollowedCoordinator,
    Target,
    host_of,
)
from regroup_operator.controller.hearing_clock import HearingClock
from regroup_operator.controller.outage_breaker import OutageBreaker
from regroup_operator.decide.coordinator_evidence import is_evidence
from regroup_operator.errors import CoordinatorError, NoAnswerError
from regroup_operator.informer.write_guard import Guard, checks, guarded, unguarded
from regroup_operator.observe.coordinator_answer import most_bytes, read_answer
from regroup_operator.observe.observed import CoordinatorView
from regroup_trainer.protocol.addresses import AGENT_METRICS_PORT
from regroup_trainer.protocol.desired import (
    CoordinatorAddress,
    CoordinatorContact,
    Desired,
    Lost,
)
from regroup_trainer.protocol.message import printable
from regroup_trainer.system.connection_errors import why_no_answer

TIMEOUT_SECONDS = 2.0
WAIT_SECONDS = 1.0
"""How long the coordinator may hold an answer back: one probe a second, so that three failures take
three seconds.
"""
PAUSE_SECONDS = 0.2
"""The least pause between an answer and the next request, so that fast steps do not keep the
operator busy.
"""
FAILURE_PAUSE_SECONDS = 1.0
"""The least pause after a request without an answer."""
POLLS_A_SECOND = 400.0
"""Of all jobs together. An answer costs about a millisecond of the operator's one thread."""
LARGE_BYTES = 256 * 1024
"""Of an answer. What is longer is read when no other such answer of its namespace is."""
TURN_PATIENCE_SECONDS = 1.0
"""How long it waits for that. A coordinator whose answer is put off is there all the same."""
_COST = (1e-3, 20e-6)
"""Seconds of that thread that an answer may take, and for each worker of its job."""


def open_session(guard: Guard = unguarded) -> aiohttp.ClientSession:
    """For Coordinators with that guard, which does not close it. It has as many connections as
    there are jobs: a request that waits for another one's connection looks unanswered.
    """
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(connector=connector, trace_configs=checks(guard))


class Coordinators:
    """The coordinators of all jobs. `on_news(key)` is called when an answer is news, or none
    comes. `guard` is asked before each request that changes something.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        on_news: Callable[[Key], None],
        guard: Guard = unguarded,
    ) -> None:
        self._session = session
        self._guard = guard
        self._on_news = on_news
        self._followers: dict[Key, FollowedCoordinator] = {}
        self._breaker = OutageBreaker()
        self._clock = HearingClock()
        """Of answers, and of silence."""
        self._ticking: asyncio.Task[None] | None = None
        self._questions = asyncio.Semaphore(QUESTIONS_AT_ONCE)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Namespace -> held while a large answer of it is read. Those that somebody uses."""

    def follow(
        self,
        key: Key,
        target: Target | None,
        agents: Sequence[Agent] = (),
        workers: int = DEFAULT_MAX_WORKERS,
    ) -> None:
        """Poll this coordinator from now on, or none. A poll of the same target goes on. `agents`
        are asked about it while it does not answer. `workers`: how many the job may have.
        """
        follower = self._followers.get(key)
        if follower is None or follower.target != target:
            self.forget(key)
            if target is None:
                return
            self._ticking = self._ticking or asyncio.create_task(self._clock.run(), name="clock")
            follower = self._followers[key] = FollowedCoordinator(
                target, heard_last=self._clock.now()
            )
            where = f"{key[0]}/{key[1]}"
            follower.tasks = [
                asyncio.create_task(self._poll(key, follower), name=f"poll {where}"),
                asyncio.create_task(self._survey(key, follower), name=f"survey {where}"),
            ]
        follower.survey.agents, follower.workers = agents, workers

    def has_asked(self, key: Key) -> bool:
        """Whether the coordinator of this job has answered, or failed to, since it is polled."""
        follower = self._followers.get(key)
        return follower is not None and follower.asked

    def forget(self, key: Key) -> None:
        """Stop polling."""
        follower = self._followers.pop(key, None)
        for task in follower.tasks if follower is not None else ():
            task.cancel()

    def view(self, key: Key, term: int, running: Iterable[str]) -> CoordinatorView:
        """The reports of the coordinator of this term; an empty view when another one is polled.
        `running`: the UIDs of the workers that run.
        """
        follower = self._followers.get(key)
        if follower is None or follower.target.term != term:
            return CoordinatorView()
        outage = self._breaker.is_open(time.monotonic())
        return follower.view(running, self._clock.now(), outage=outage)

    def close(self) -> None:
        """Stop all polls."""
        if self._ticking is not None:
            self._ticking.cancel()
        for key in list(self._followers):
            self.forget(key)

    async def put_desired(self, target: Target, desired: Desired) -> None:
        """PUT /v1/desired. Raises CoordinatorError."""
        await self._send("PUT", target, "/v1/desired", desired.to_json(target.protocol))

    async def post_lost(self, target: Target, lost: Lost) -> None:
        """POST /v1/lost. Raises CoordinatorError."""
        await self._send("POST", target, "/v1/lost", lost.model_dump_json())

    async def send_address(self, address: str, token: str, url: str) -> None:
        """PUT /v1/coordinator to the agent at this IP. Raises CoordinatorError."""
        agent = f"http://{host_of(address)}:{AGENT_METRICS_PORT}"
        body = CoordinatorAddress(url=url).model_dump_json()
        await self._request("PUT", agent + "/v1/coordinator", token, body)

    async def _poll(self, key: Key, follower: FollowedCoordinator) -> None:
        while True:
            pause = PAUSE_SECONDS
            try:
                news = self._answered(follower, await self._status(key, follower))
            except CoordinatorError as error:
                news, pause = self._failed(key, follower, error), FAILURE_PAUSE_SECONDS
            if news:
                self._on_news(key)
            await asyncio.sleep(
                poll_pause(pause, len(self._followers), follower.cost, follower.workers)
            )

    def _answered(self, follower: FollowedCoordinator, answer: bytearray) -> bool:
        """Take over an answer, and what it costs. Returns whether it is news. Raises
        CoordinatorError for what is no answer.
        """
        begun = time.thread_time()
        try:
            status = read_answer(answer, follower.target.term, follower.workers)
            return follower.answered(status, self._clock.now())
        except ValueError as error:
            raise CoordinatorError(
                f"{follower.target.url}: its answer is not taken: {error} (run operator and "
                "coordinator from one release)"
            ) from error
        finally:
            follower.cost = time.thread_time() - begun

    def _failed(self, key: Key, follower: FollowedCoordinator, error: CoordinatorError) -> bool:
        if isinstance(error, NoAnswerError):
            self._breaker.note_failure(key, len(self._followers), time.monotonic())
        return follower.failed(error, self._clock.now())

    async def _survey(self, key: Key, follower: FollowedCoordinator) -> None:
        """Ask agents while the coordinator does not answer. That one has not heard it either is
        news.
        """
        while True:
            await follower.is_silent.wait()
            if not self._breaker.is_open(time.monotonic()):
                ask = functools.partial(self._ask_agent, follower.target.token)
                await follower.survey.take_turn(ask, self._questions)
                if is_evidence(follower.survey.contacts()):
                    self._on_news(key)
            await asyncio.sleep(TURN_SECONDS)

    async def _ask_agent(self, token: str, agent: Agent) -> CoordinatorContact:
        """GET /v1/coordinator of an agent. Raises CoordinatorError."""
        url = f"http://{host_of(agent.address)}:{AGENT_METRICS_PORT}/v1/coordinator"
        text = await self._request("GET", url, token, None)
        try:
            return CoordinatorContact.model_validate_json(text)
        except ValueError as error:
            raise CoordinatorError(f"{url}: not what an agent answers: {error}") from error

    async def _status(self, key: Key, follower: FollowedCoordinator) -> bytearray:
        after = follower.status.sequence if follower.status and not follower.failures else 0
        url = f"{follower.target.url}/v1/status?after={after}&wait={WAIT_SECONDS}"
        turn = self._turns.setdefault(key[0], asyncio.Lock())
        read = functools.partial(_read, most=most_bytes(follower.workers), turn=turn)
        return await self._request("GET", url, follower.target.token, None, read)

    async def _send(self, method: str, target: Target, path: str, body: str) -> None:
        await self._request(method, target.url + path, target.token, body)

    async def _request(
        self, method: str, url: str, token: str, body: str | None, read: _Reader | None = None
    ) -> bytearray:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(
            total=TIMEOUT_SECONDS + WAIT_SECONDS, sock_connect=TIMEOUT_SECONDS
        )
        try:
            async with self._session.request(
                method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                **guarded(method, self._guard, timeout),
            ) as answer:
                content = await (read or _read)(answer)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            where = url.partition("?")[0]
            raise NoAnswerError(f"{where}: {why_no_answer(error)}") from error
        if answer.status >= 300:
            # A tenant's program wrote it: in a log it must look like no other line.
            said = content[:300].decode(errors="replace")
            raise CoordinatorError(f"{method} {url}: {answer.status} {printable(said)}")
        return content


def poll_pause(least: float, polls: int, cost: float, workers: int) -> float:
    """Seconds between an answer and the next request to that coordinator.

    All polls together take a part of the operator's thread. A coordinator whose answers take more
    than those of so many workers should is asked as much less often, so that it delays itself.
    """
    fair = _COST[0] + _COST[1] * workers
    return max(least, polls / POLLS_A_SECOND) * max(1.0, cost / fair)


_Reader = Callable[[aiohttp.ClientResponse], Awaitable[bytearray]]


async def _read(
    answer: aiohttp.ClientResponse, most: int = LARGE_BYTES, turn: asyncio.Lock | None = None
) -> bytearray:
    """The body. Raises CoordinatorError above `most` bytes, and where it is not its turn."""
    body = bytearray()
    async with AsyncExitStack() as held:
        async for chunk in answer.content.iter_chunked(65536):
            if turn and len(body) <= LARGE_BYTES < len(body) + len(chunk):
                await _take(turn, answer)
                held.callback(turn.release)
            body += chunk
            if len(body) > most:
                raise CoordinatorError(f"{answer.url}: an answer above {most} bytes")
    return body


async def _take(turn: asyncio.Lock, answer: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(TURN_PATIENCE_SECONDS):
            await turn.acquire()
    except TimeoutError as error:
        raise CoordinatorError(
            f"{answer.url}: its large answer is put off: another of its namespace is being read"
        ) from error
