"""The operator's connection to the coordinators: one long poll per job, and two requests.

The operator calls the IP of the coordinator pod that the job's UID owns: no names, no redirects, a
time limit and a size limit. The answer is validated. An answer with news puts the job's key on the
queue; a new step alone is not news.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from regroup_operator.errors import CoordinatorError
from regroup_operator.observe.coordinator_answer import MOST_BYTES, read_answer
from regroup_operator.observe.observed import CoordinatorView
from regroup_trainer.protocol.addresses import AGENT_METRICS_PORT, COORDINATOR_PORT
from regroup_trainer.protocol.desired import CoordinatorAddress, Desired, Lost
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.protocol.message import PROTOCOL_VERSION
from regroup_trainer.system.connection_errors import why_no_answer

TIMEOUT_SECONDS = 2.0
WAIT_SECONDS = 1.0
"""How long the coordinator may hold an answer back: one probe a second, so that three failures take
three seconds.
"""
PAUSE_SECONDS = 0.2
"""Pause between an answer and the next request, so that fast steps do not keep the operator busy.
"""
FAILURE_PAUSE_SECONDS = 1.0

Key = tuple[str, str]


@dataclass(frozen=True)
class Target:
    """A coordinator."""

    uid: str
    """UID of its pod."""
    address: str
    term: int
    token: str
    protocol: int = PROTOCOL_VERSION
    """The version that it speaks: of the release that its job was started with."""

    @property
    def url(self) -> str:
        """http://address:port"""
        return f"http://{_host(self.address)}:{COORDINATOR_PORT}"


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


@dataclass
class _Follower:
    """The poll of one job."""

    target: Target
    task: asyncio.Task[None] | None = None
    status: CoordinatorStatus | None = None
    failures: int = 0
    error: str = ""
    answering_since: float | None = None
    lost_since: dict[str, float] = field(default_factory=dict)
    heard_at: dict[str, float] = field(default_factory=dict)
    """UID of a running worker -> when the coordinator last heard of it, or it was first seen."""

    def answered(self, status: CoordinatorStatus, now: float) -> bool:
        """Take over an answer. Returns whether it is news."""
        news = self.failures > 0 or self.status is None or _essence(self.status) != _essence(status)
        lost = {member.member for member in status.members if member.lost}
        self.lost_since = {uid: self.lost_since.get(uid, now) for uid in lost}
        heard = {m.member for m in status.members if not m.lost} | set(status.heard or ())
        # A coordinator that did not answer could not say of whom it heard meanwhile.
        again = self.failures > 0
        self.heard_at = {
            uid: now if again or uid in heard else at for uid, at in self.heard_at.items()
        }
        self.status, self.failures, self.error = status, 0, ""
        self.answering_since = self.answering_since or now
        return news

    def view(self, running: Iterable[str], now: float) -> CoordinatorView:
        """For the planner. `running`: the UIDs of the workers that run."""
        self.heard_at = {uid: self.heard_at.get(uid, now) for uid in running}
        says = self.status is not None and self.status.heard is not None
        return CoordinatorView(
            status=self.status,
            failures=self.failures,
            answering_seconds=now - self.answering_since
            if self.answering_since is not None
            else 0.0,
            lost_seconds={uid: now - since for uid, since in self.lost_since.items()},
            silent_seconds={uid: now - at for uid, at in self.heard_at.items() if says},
            error=self.error,
        )


def _essence(status: CoordinatorStatus) -> dict[str, Any]:
    """The parts of an answer that make it news: all but the numbers that every step changes."""
    essence = status.model_dump(exclude={"sequence", "heard", "progress", "ledger", "message"})
    essence["members"] = [(m.member, m.rank, m.lost) for m in status.members]
    essence["has_stepped"] = status.progress is not None
    return essence


class Coordinators:
    """The coordinators of all jobs. `on_news(key)` is called when an answer is news, or none
    comes.
    """

    def __init__(self, session: aiohttp.ClientSession, on_news: Callable[[Key], None]) -> None:
        self._session = session
        self._on_news = on_news
        self._followers: dict[Key, _Follower] = {}

    def follow(self, key: Key, target: Target | None) -> None:
        """Poll this coordinator from now on, or none. A poll of the same target goes on."""
        follower = self._followers.get(key)
        if follower is not None and follower.target == target:
            return
        self.forget(key)
        if target is not None:
            follower = self._followers[key] = _Follower(target)
            follower.task = asyncio.create_task(
                self._poll(key, follower), name=f"poll {key[0]}/{key[1]}"
            )

    def forget(self, key: Key) -> None:
        """Stop polling."""
        follower = self._followers.pop(key, None)
        if follower is not None and follower.task is not None:
            follower.task.cancel()

    def view(self, key: Key, term: int, running: Iterable[str]) -> CoordinatorView:
        """The reports of the coordinator of this term; an empty view when another one is polled.
        `running`: the UIDs of the workers that run.
        """
        follower = self._followers.get(key)
        if follower is None or follower.target.term != term:
            return CoordinatorView()
        return follower.view(running, time.monotonic())

    def close(self) -> None:
        """Stop all polls."""
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
        agent = f"http://{_host(address)}:{AGENT_METRICS_PORT}"
        body = CoordinatorAddress(url=url).model_dump_json()
        await self._request("PUT", agent + "/v1/coordinator", token, body)

    async def _poll(self, key: Key, follower: _Follower) -> None:
        while True:
            try:
                status = await self._status(follower)
            except CoordinatorError as error:
                follower.failures += 1
                follower.error = str(error)
                self._on_news(key)
                await asyncio.sleep(FAILURE_PAUSE_SECONDS)
                continue
            if follower.answered(status, time.monotonic()):
                self._on_news(key)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _status(self, follower: _Follower) -> CoordinatorStatus:
        after = follower.status.sequence if follower.status and not follower.failures else 0
        path = f"/v1/status?after={after}&wait={WAIT_SECONDS}"
        text = await self._send("GET", follower.target, path, None)
        try:
            return read_answer(text.encode(), follower.target.term)
        except ValueError as error:
            raise CoordinatorError(
                f"{follower.target.url}: its answer is not taken: {error} (run operator and "
                "coordinator from one release)"
            ) from error

    async def _send(self, method: str, target: Target, path: str, body: str | None) -> str:
        return await self._request(method, target.url + path, target.token, body)

    async def _request(self, method: str, url: str, token: str, body: str | None) -> str:
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
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                text = (await _read(answer)).decode(errors="replace")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            where = url.partition("?")[0]
            raise CoordinatorError(f"{where}: {why_no_answer(error)}") from error
        if answer.status >= 300:
            raise CoordinatorError(f"{method} {url}: {answer.status} {text[:300]}")
        return text


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The body, up to the limit. Raises CoordinatorError above it."""
    body = b""
    async for chunk in answer.content.iter_chunked(65536):
        body += chunk
        if len(body) > MOST_BYTES:
            raise CoordinatorError(f"{answer.url}: an answer above {MOST_BYTES} bytes")
    return body
