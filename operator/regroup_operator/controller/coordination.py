"""The operator's connections to the coordinators: one watch per job, and its requests to them and
to agents.

The operator calls the IP of the coordinator pod that the job's UID owns: no names, no redirects, a
time limit and a size limit. The answer is validated. An answer with news puts the job's key on the
queue; a new step alone is not news. A coordinator of an older release is polled instead.

Each watch has its own connection, so that none waits for another. How often answers of all of them
together are read is limited: with more than 80 jobs the pauses after an answer grow. Large answers
of a namespace are read in turn.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from weakref import WeakValueDictionary

import aiohttp

from regroup_operator.api.resource import Key
from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS
from regroup_operator.controller.agent_survey import (
    QUESTIONS_AT_ONCE,
    QUESTIONS_OF_A_NAMESPACE,
    TURN_SECONDS,
    Agent,
)
from regroup_operator.controller.contact_clock import ContactClock
from regroup_operator.controller.coordinator_requests import (
    WAIT_SECONDS,
    Requests,
    read_body,
)
from regroup_operator.controller.followed_coordinator import (
    ANSWER_BYTES,
    AnswerRoom,
    FollowedCoordinator,
    Target,
    host_of,
    without_emitted,
)
from regroup_operator.controller.internal_error import unknown
from regroup_operator.controller.metered_answers import (
    SMALL_BYTES,
    Meter,
    charged_to,
    thread_seconds,
)
from regroup_operator.controller.operator_metrics import count_internal_error
from regroup_operator.controller.outage_breaker import OutageBreaker
from regroup_operator.decide.coordinator_evidence import is_evidence
from regroup_operator.errors import (
    CoordinatorError,
    CostlyAnswerError,
    NoAnswerError,
    NoWatchError,
)
from regroup_operator.informer.write_guard import Guard, unguarded
from regroup_operator.observe.coordinator_answer import kept_bytes, most_bytes, read_answer
from regroup_operator.observe.observed import CoordinatorView
from regroup_trainer.protocol.desired import (
    CoordinatorAddress,
    CoordinatorContact,
    Desired,
    Lost,
)
from regroup_trainer.protocol.environment import AGENT_METRICS_PORT
from regroup_trainer.protocol.job_status import ASK_LINE, WATCH_LINE_SECONDS, UnknownProtocolError

PAUSE_SECONDS = 0.2
"""The least pause between an answer and the next one, so that fast steps do not keep the operator
busy.
"""
FAILURE_PAUSE_SECONDS = 1.0
"""The least pause after a request without an answer; half of it after the end of a watch."""
COSTLY_PAUSE_SECONDS = 30.0
"""The least pause after an answer that it takes too much time to read, and after an error that
nothing expects.
"""
ANSWERS_A_SECOND = 400.0
"""Of all jobs together. An answer costs about a millisecond of the operator's one thread."""
LINES_A_SECOND = 200.0
"""Of all watches together, until each has the longest period. An unresponsive coordinator is known
to be so as soon as if it were polled where there are up to 360, and 1.6 s later with 1,000.
"""
MISFIT = 1.25
"""How many times too often, or too seldom, lines of a watch may come. The first of a thousand jobs
would send five times as many as the last one, for ever.
"""
RENEWED_SECONDS = 30.0
"""A watch lasts so long at least, and up to twice as long, so that not all begin again at once.
After a start of the operator ever more are followed.
"""
_COST = (1e-3, 20e-6)
"""Seconds of that thread that an answer may take, and for each worker of its job."""
FREE_SECONDS = (0.2, 1e-3)
"""Of that thread that rounds of a job may take at once, and for each of its pods: news come in
bursts where a job recovers. Twenty rounds take as much, and such bursts have about five.
"""
ROUNDS_SHARE = (0.01, 1e-5)
"""Of that thread for rounds of a job that its news begin over and over, likewise."""
ALL_ROUNDS_SHARE = 0.5
"""Of that thread for those of all such jobs together: with more than 50 each has less."""
_WITH_FOLLOWING = 2.0
"""Times what such a round itself takes is what it takes in all: its write of the status is sent
beside it and comes back by a watch, which begins another round.
"""
URGENT_SECONDS, LONGEST_SECONDS = 1.0, 30.0
"""The longest wait of news before they begin a round: that a coordinator does not answer, and all
others. A job that trains has a round at about such intervals anyway.
"""

_NO_ROOM = (
    "{}: there is no room for its answer: those of the coordinators of namespace {} take all that "
    "the operator keeps for one namespace (suspend jobs there, or lower their maxReplicas)"
)
"""Without numbers: each other text is news."""

log = logging.getLogger(__name__)
_Task = Callable[[Key, FollowedCoordinator], Awaitable[None]]


class Coordinators:
    """The coordinators of all jobs. `on_news(key)` is called when an answer is news, or none
    comes; the rounds that it begins are to be charged. `guard` is asked before each request that
    changes something.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        on_news: Callable[[Key], None],
        guard: Guard = unguarded,
    ) -> None:
        self._on_news = on_news
        self._followers: dict[Key, FollowedCoordinator] = {}
        self._followed: Counter[str] = Counter()
        """Namespace -> how many of them are its."""
        self._room = AnswerRoom(ANSWER_BYTES)
        self._in_debt: set[Key] = set()
        """Jobs whose last news had to wait, since their rounds have taken too much."""
        self._breaker = OutageBreaker()
        self._clock = ContactClock()
        """Of answers, and of the time without any."""
        self._requests = Requests(session, self._clock, guard)
        self._ticking: asyncio.Task[None] | None = None
        self._questions = asyncio.Semaphore(QUESTIONS_AT_ONCE)
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Namespace -> places for its questions. Those that somebody uses."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Namespace -> held while a large answer of it is read. Those that somebody uses."""

    def follow(
        self,
        key: Key,
        target: Target | None,
        agents: Sequence[Agent] = (),
        workers: int = DEFAULT_MAX_WORKERS,
        emitted: int = 0,
    ) -> None:
        """Follow this coordinator from now on, or none. The same target is followed on. `agents`
        are asked about it while it does not answer. `workers`: how many the job may have.
        `emitted`: sequence of its newest event that is known to have been emitted.
        """
        follower = self._followers.get(key)
        if follower is None or follower.target != target:
            self.forget(key)
            if target is None:
                return
            if self._ticking is None or self._ticking.done():
                self._ticking = asyncio.create_task(self._clock.run(), name="clock")
            follower = self._followers[key] = FollowedCoordinator(
                target, last_contact=self._clock.now(), emitted=emitted
            )
            self._followed[key[0]] += 1
            follower.survey.places = self._places.setdefault(
                key[0], asyncio.Semaphore(QUESTIONS_OF_A_NAMESPACE)
            )
            where = f"{key[0]}/{key[1]}"
            follower.tasks = [
                asyncio.create_task(self._keep_on(task, key, follower), name=f"{name} {where}")
                for name, task in (("follow", self._follow), ("survey", self._survey))
            ]
        follower.survey.agents, follower.workers = agents, workers

    def has_asked(self, key: Key, target: Target) -> bool:
        """Whether this coordinator of a job has answered, or failed to, since it is followed."""
        follower = self._followers.get(key)
        return follower is not None and follower.target == target and follower.asked

    def note_emitted(self, key: Key, term: int, sequence: int) -> None:
        """Events up to this one of the coordinator of this term have been emitted."""
        follower = self._followers.get(key)
        if follower is not None and follower.target.term == term:
            follower.note_emitted(sequence)

    def forget(self, key: Key) -> None:
        """Stop following."""
        follower = self._followers.pop(key, None)
        if follower is None:
            return
        self._followed -= Counter([key[0]])  # without namespaces that have none left
        follower.drop_news()
        self._in_debt.discard(key)
        self._room.release(key)
        for task in follower.tasks:
            task.cancel()

    def view(self, key: Key, term: int, running: Iterable[str]) -> CoordinatorView:
        """The reports of the coordinator of this term; an empty view when another one is followed.
        `running`: the UIDs of the workers that run.
        """
        follower = self._followers.get(key)
        if follower is None or follower.target.term != term:
            return CoordinatorView()
        outage = self._breaker.is_open(key[0], time.monotonic())
        return follower.view(running, self._clock.now(), outage=outage)

    def charge_round(self, key: Key, seconds: float, pods: int) -> None:
        """A round of a job with so many pods took so long of the thread. Where news of its
        coordinator have begun it, those that follow begin the next one later.
        """
        follower = self._followers.get(key)
        if follower is None:
            return
        follower.pods = pods
        if follower.has_round:
            follower.has_round = False
            share = rounds_share(pods, len(self._in_debt))
            follower.rounds.charge(_WITH_FOLLOWING * seconds, share, time.monotonic())

    def _bring_news(
        self, key: Key, follower: FollowedCoordinator, longest: float = LONGEST_SECONDS
    ) -> None:
        """Call `on_news`, now or after a pause that its rounds have made necessary: the status is
        taken over meanwhile, and a round for another reason acts on it.
        """
        free, each = FREE_SECONDS
        share = rounds_share(follower.pods, len(self._in_debt))
        pause = follower.rounds.pause(free + each * follower.pods, share, time.monotonic())
        if not pause:
            self._in_debt.discard(key)
            self._begin_round(key, follower)
            return
        self._in_debt.add(key)
        loop = asyncio.get_running_loop()
        at = loop.time() + min(pause, longest)
        if follower.news is None or at < follower.news.when():
            follower.drop_news()
            follower.news = loop.call_at(at, self._begin_round, key, follower)

    def _begin_round(self, key: Key, follower: FollowedCoordinator) -> None:
        follower.drop_news()
        follower.has_round = True
        self._on_news(key)

    def close(self) -> None:
        """Follow none."""
        if self._ticking is not None:
            self._ticking.cancel()
        for key in list(self._followers):
            self.forget(key)

    async def put_desired(self, target: Target, desired: Desired) -> None:
        """PUT /v1/desired. Raises CoordinatorError."""
        url, body = f"{target.url}/v1/desired", desired.to_json(target.protocol)
        await self._send("PUT", url, target.token, body)

    async def post_lost(self, target: Target, lost: Lost) -> None:
        """POST /v1/lost. Raises CoordinatorError."""
        await self._send("POST", f"{target.url}/v1/lost", target.token, lost.model_dump_json())

    async def send_address(self, address: str, token: str, url: str) -> None:
        """PUT /v1/coordinator to the agent at this IP. Raises CoordinatorError."""
        agent = f"http://{host_of(address)}:{AGENT_METRICS_PORT}"
        body = CoordinatorAddress(url=url).model_dump_json()
        await self._send("PUT", agent + "/v1/coordinator", token, body)

    async def _keep_on(self, task: _Task, key: Key, follower: FollowedCoordinator) -> None:
        """Run a task of a follower; again after an error that nothing expects, whatever it is: the
        operator would be blind to this job, and nothing would show it.
        """
        while True:
            try:
                with charged_to(follower.meter):
                    await task(key, follower)
            except Exception as error:
                log.error("%s/%s: cannot follow its coordinator", *key, exc_info=error)
                count_internal_error()
                if task == self._follow:  # what agents report is not needed
                    self._show(key, follower, error)
            await asyncio.sleep(COSTLY_PAUSE_SECONDS)

    def _show(self, key: Key, follower: FollowedCoordinator, error: Exception) -> None:
        """Show an error that nothing expects. It is no evidence of death."""
        text = f"{unknown(error)}: its log has the details, please report them"
        if follower.failed(CoordinatorError(text), self._clock.now()):
            self._bring_news(key, follower)

    async def _follow(self, key: Key, follower: FollowedCoordinator) -> None:
        while follower.has_watch:
            least = PAUSE_SECONDS
            try:
                await self._watch(key, follower)
            except NoWatchError:
                follower.has_watch = False
                break
            except CoordinatorError as error:
                least = self._failed(key, follower, error)
            # Outside of `except`: the error would keep what was decoded of a large answer.
            await asyncio.sleep(self._pause(least, follower) * random.uniform(0.5, 1.0))
        await self._poll(key, follower)

    async def _watch(self, key: Key, follower: FollowedCoordinator) -> None:
        """Until it ends, by a CoordinatorError, or its lines come too often or too seldom for as
        many as are followed by now.
        """
        url, every = f"{follower.target.url}/v1/watch", line_seconds(len(self._followers))
        is_taken = functools.partial(self._is_contact, follower)
        async with self._requests.watch(url, follower.target.token, every, is_taken) as next_line:
            renewable_at = self._clock.now() + random.uniform(1.0, 2.0) * RENEWED_SECONDS
            while self._clock.now() < renewable_at or fits(every, len(self._followers)):
                # Without a name for a line, which would be kept until the next one.
                if pause := await self._take(key, follower, await next_line()):
                    await asyncio.sleep(pause)

    def _is_contact(self, follower: FollowedCoordinator) -> bool:
        """Take over an empty line. Those that come faster than they should are read as others."""
        now = self._clock.now()
        if now - follower.last_contact < PAUSE_SECONDS:
            return False
        follower.note_contact(now)
        return True

    async def _take(self, key: Key, follower: FollowedCoordinator, line: bytes) -> float:
        """Take over a line. Returns the pause until the next one is read: empty ones that come
        faster than they should, or in pieces that are costly to read, are read together.
        """
        if line:
            answer = await self._status(key, follower) if line == ASK_LINE else line
            self._answered(key, follower, answer)
            return self._pause(PAUSE_SECONDS, follower)
        now, before = self._clock.now(), follower.last_contact
        follower.note_contact(now)
        if follower.meter.seconds > fair_cost(follower.workers):
            return self._pause(PAUSE_SECONDS, follower)
        return PAUSE_SECONDS if now - before < PAUSE_SECONDS else 0.0

    async def _poll(self, key: Key, follower: FollowedCoordinator) -> None:
        while True:
            after = follower.status.sequence if follower.status and not follower.failures else 0
            pause = PAUSE_SECONDS
            try:
                self._answered(key, follower, await self._status(key, follower, after))
            except CoordinatorError as error:
                pause = self._failed(key, follower, error)
            await asyncio.sleep(self._pause(pause, follower))

    def _pause(self, least: float, follower: FollowedCoordinator) -> float:
        cost = follower.meter.take()
        return answer_pause(least, len(self._followers), cost, follower.workers)

    def _answered(self, key: Key, follower: FollowedCoordinator, answer: bytes | bytearray) -> None:
        """Take over an answer, and what it costs. Raises CoordinatorError for what is no answer."""
        begun = thread_seconds()
        try:
            status = read_answer(answer, follower.target.term, follower.workers)
            status = without_emitted(status, follower.emitted)
            if not self._room.take(key, kept_bytes(status)):
                raise CoordinatorError(_NO_ROOM.format(follower.target.url, key[0]))
            news = follower.answered(status, self._clock.now())
        except UnknownProtocolError as error:
            raise CoordinatorError(f"{follower.target.url}: {error}") from error
        except ValueError as error:
            raise CoordinatorError(
                f"{follower.target.url}: its answer is not taken: {error} (run operator and "
                "coordinator from one release)"
            ) from error
        finally:
            follower.meter.charge(thread_seconds() - begun)
        if news:
            self._bring_news(key, follower)

    def _failed(self, key: Key, follower: FollowedCoordinator, error: CoordinatorError) -> float:
        """Take over that there was no status. Returns the least pause before the next try."""
        if isinstance(error, NoAnswerError):
            self._breaker.note_failure(key, self._followed, time.monotonic())
        if follower.failed(error, self._clock.now()):
            self._bring_news(key, follower, URGENT_SECONDS)
        is_costly = isinstance(error, CostlyAnswerError)
        return COSTLY_PAUSE_SECONDS if is_costly else FAILURE_PAUSE_SECONDS

    async def _survey(self, key: Key, follower: FollowedCoordinator) -> None:
        """Ask agents while the coordinator does not answer. An agent without an answer is news."""
        while True:
            await follower.stopped_answering.wait()
            if not self._breaker.is_open(key[0], time.monotonic()):
                ask = functools.partial(self._ask_agent, follower.target.token)
                await follower.survey.take_turn(ask, self._questions)
                if is_evidence(follower.survey.contacts()):
                    self._bring_news(key, follower, URGENT_SECONDS)
            await asyncio.sleep(TURN_SECONDS)

    async def _ask_agent(self, token: str, agent: Agent) -> CoordinatorContact:
        """GET /v1/coordinator of an agent. Raises CoordinatorError."""
        url = f"http://{host_of(agent.address)}:{AGENT_METRICS_PORT}/v1/coordinator"
        text = await self._requests.send("GET", url, token)
        try:
            return CoordinatorContact.model_validate_json(text)
        except ValueError as error:
            raise CoordinatorError(f"{url}: not what an agent answers") from error

    async def _status(self, key: Key, follower: FollowedCoordinator, after: int = 0) -> bytearray:
        url = f"{follower.target.url}/v1/status?after={after}&wait={WAIT_SECONDS}"
        turn = self._turns.setdefault(key[0], asyncio.Lock())
        read = functools.partial(read_body, most=most_bytes(follower.workers), turn=turn)
        return await self._requests.send("GET", url, follower.target.token, read=read)

    async def _send(self, method: str, url: str, token: str, body: str) -> None:
        """A request to which a line is enough of an answer."""
        with charged_to(Meter(SMALL_BYTES)):
            await self._requests.send(method, url, token, body)


def line_seconds(followed: int) -> float:
    """How often a coordinator is to send a line while so many are followed."""
    least, longest = WATCH_LINE_SECONDS
    return min(max(least, followed / LINES_A_SECOND), longest)


def fits(every: float, followed: int) -> bool:
    """Whether a watch with a line every so many seconds may go on while so many are followed."""
    ratio = every / line_seconds(followed)
    return 1 / MISFIT <= ratio <= MISFIT


def answer_pause(least: float, followed: int, cost: float, workers: int) -> float:
    """Seconds between an answer of a coordinator and the next one that is read or asked for.

    All answers together take a part of the operator's thread. A coordinator whose answers take more
    than those of so many workers should is asked as much less often, so that it delays itself: also
    after one that failed, and however many connections they came over.
    """
    usual = max(PAUSE_SECONDS, followed / ANSWERS_A_SECOND)
    return max(least, usual * max(1.0, cost / fair_cost(workers)))


def rounds_share(pods: int, in_debt: int) -> float:
    """The part of the operator's thread for rounds that news of one coordinator begin, where its
    job has so many pods, and rounds of so many jobs have taken too much.
    """
    share, each = ROUNDS_SHARE
    return min(share + each * pods, ALL_ROUNDS_SHARE / max(1, in_debt))


def fair_cost(workers: int) -> float:
    """Seconds of the operator's thread that an answer may take where a job has so many workers."""
    return _COST[0] + _COST[1] * workers
