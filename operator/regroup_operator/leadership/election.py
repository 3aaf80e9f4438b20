"""One replica's part in the election: asks for the Lease, takes it, renews it, gives it back.

What a replica may do is decided in `candidacy`. Here are the clock, the requests, and the end of
the process that no longer leads: at once, as if it had crashed, since requests are under way.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import NoReturn, TypeVar

from prometheus_client import Gauge

from regroup_operator.errors import ClusterError, ConflictError
from regroup_operator.leadership.candidacy import ACT_SECONDS, Candidacy
from regroup_operator.leadership.lease_requests import LeaseRequests

RENEW_SECONDS = 2.0
ASK_SECONDS = 0.5
"""Between a standby's questions: it acts so soon after the leader has given the Lease back."""
REQUEST_SECONDS = 5.0
"""Of one request for the Lease. Another try follows."""
RELEASE_SECONDS = 8.0
"""To give the Lease back: less than a pod has to end, and than the Lease takes to expire."""
RELEASE_TRY_SECONDS = 3.0
"""Of that, for one try. A connection may be broken."""
RELEASE_PAUSE_SECONDS = 0.1
EXIT_CODE = 3
"""Of a process that has lost the Lease."""

leads = Gauge("leader_election_master_status", "1: this replica leads; 0: it stands by.", ["name"])
log = logging.getLogger(__name__)
T = TypeVar("T")


def end_process(why: str) -> NoReturn:
    """End at once, whatever is under way. Its container is started again."""
    log.critical("the operator ends, and another replica acts: %s", why)
    logging.shutdown()
    os._exit(EXIT_CODE)


def new_identity() -> str:
    """For one process. The former one in the same pod may still have requests under way."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


def elapsed_seconds() -> float:
    """A clock that nobody sets, and that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Election:
    """Calls `end`, which must not return, when this replica has led and must not act any more."""

    def __init__(
        self,
        requests: LeaseRequests,
        identity: str,
        end: Callable[[str], NoReturn] = end_process,
        clock: Callable[[], float] = elapsed_seconds,
    ) -> None:
        self._requests = requests
        self._state = Candidacy(identity)
        self._end = end
        self._clock = clock
        self._problem = ""
        self._unanswered: str | None = None
        """The version of the Lease that a write was to change, which has no answer; empty: it was
        to make the Lease. None: there is no such write.
        """
        self._gauge = leads.labels(name=requests.place.rpartition("/")[2])
        self._gauge.set(0)
        self.has_read = asyncio.Event()
        """Whether the API server lets it read the Lease, which then is there, or may be made."""

    def seconds_left(self) -> float:
        """For how long this replica may write from now on; more than 0. Ends the process when it
        may not.
        """
        left = self._state.acts_until - self._clock()
        if left <= 0:
            self._end(self._why_it_ends())
        return left

    async def win(self, seconds: float = math.inf) -> bool:
        """Return as soon as this replica leads, or after about so many seconds. Returns whether it
        leads; `hold` must follow then.
        """
        end = self._clock() + seconds
        while True:
            await self._take_turn()
            if self._state.leads(self._clock()):
                break
            if self._clock() >= end:
                return False
            await asyncio.sleep(ASK_SECONDS)
        self._gauge.set(1)
        log.info("leads, by Lease %s", self._requests.place)
        return True

    async def hold(self) -> NoReturn:
        """Renew the Lease until the process ends."""
        while True:
            await asyncio.sleep(min(RENEW_SECONDS, self.seconds_left()))
            self.seconds_left()
            await self._take_turn()

    async def release(self) -> None:
        """Give the Lease back if this replica holds it. Nothing may be written from now on. Another
        replica waits for the Lease to expire where this fails.
        """
        self._state = self._state.retired()
        self._gauge.set(0)
        if self._state.lease is None and self._unanswered is None:
            return  # it has not even asked
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                while not await self._is_released():
                    pass
        except (TimeoutError, ClusterError) as error:
            why = str(error) or self._problem or "no answer"
            log.warning("cannot give Lease %s back: %s", self._requests.place, why)

    async def _is_released(self) -> bool:
        """Try. A renewal that was under way may have come between. False: another try may succeed.
        Raises ClusterError where none will.
        """
        try:
            async with asyncio.timeout(RELEASE_TRY_SECONDS):
                return await self._give_back()
        except (TimeoutError, ClusterError) as error:
            if isinstance(error, ClusterError) and not _may_pass(error):
                raise
            self._problem = str(error) or "no answer"
        await asyncio.sleep(RELEASE_PAUSE_SECONDS)
        return False

    async def _give_back(self) -> bool:
        """Whether no write of this replica can make it the holder any more. One that has no answer
        may still arrive: it is refused once the Lease has changed.
        """
        lease = await self._requests.read()
        holds = lease is not None and lease.holder == self._state.identity
        if not holds and self._unanswered != (lease.version if lease is not None else ""):
            return True
        self._state = self._state.seen(lease, self._clock())
        spec = {**self._state.spec(datetime.now(UTC)), "holderIdentity": ""}
        await self._requests.write(lease, spec)
        return True

    async def _take_turn(self) -> None:
        try:
            await self._read_and_write()
            self._problem = ""
        except (TimeoutError, ClusterError) as error:
            self._state = self._state.doubted()
            self._report(str(error) or "no answer")

    async def _read_and_write(self) -> None:
        if not self._state.wrote_last:
            lease = await self._in_time(self._requests.read())
            self._state = self._state.seen(lease, self._clock())
            self.has_read.set()
        sent_at = self._clock()
        if self._state.may_write(sent_at):
            lease, spec = self._state.lease, self._state.spec(datetime.now(UTC))
            self._unanswered = lease.version if lease is not None else ""
            written = await self._in_time(self._requests.write(lease, spec))
            self._unanswered = None
            self._state = self._state.wrote(written, sent_at)

    async def _in_time(self, request: Awaitable[T]) -> T:
        """Each request has its own time: a slow API server answers a read and a write, too. Raises
        TimeoutError, for a leader no later than it may act.
        """
        now = self._clock()
        left = self._state.acts_until - now if self._state.leads(now) else REQUEST_SECONDS
        async with asyncio.timeout(min(REQUEST_SECONDS, left)):
            return await request

    def _report(self, problem: str) -> None:
        """Log a problem that is new."""
        if problem != self._problem:
            log.warning("Lease %s: %s", self._requests.place, problem)
        self._problem = problem

    def _why_it_ends(self) -> str:
        lease, place = self._state.lease, self._requests.place
        if lease is not None and lease.holder not in ("", self._state.identity):
            return f"{lease.holder} holds Lease {place}"
        return f"Lease {place} was not renewed for {ACT_SECONDS:g} s: {self._problem or 'paused'}"


def _may_pass(error: ClusterError) -> bool:
    """Whether another try may succeed."""
    return error.may_pass or isinstance(error, ConflictError)
