"""One replica's part in the election, beside an API server in memory and with a clock of the
test's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from regroup_operator.errors import ClusterError, ConflictError
from regroup_operator.informer.api_connection import ApiConnection
from regroup_operator.leadership import election
from regroup_operator.leadership.candidacy import ACT_SECONDS, LEASE_SECONDS, Lease
from regroup_operator.leadership.election import Election, elapsed_seconds, new_identity
from regroup_operator.leadership.lease_requests import LeaseRequests
from tests.support.fake_cluster_api import FakeClusterApi
from tests.support.waiting import until, wait_until

PLACE = "regroup-system/regroup-operator"
DEADLINE_SECONDS = 60
ASK_SECONDS = election.ASK_SECONDS
RELEASED_SECONDS, KILLED_SECONDS = 1, 16
"""Until another replica leads, by its own clock: a second and four less than its pages promise for
it to act.
"""


class EndedError(Exception):
    """Stands for the end of the process."""


class Replica:
    """An election, and the clock that it sees."""

    def __init__(self, connection: ApiConnection, identity: str) -> None:
        self.now = 100.0
        self.requests = LeaseRequests(connection, PLACE)
        self.election = Election(self.requests, identity, self._end, lambda: self.now)

    def _end(self, why: str) -> NoReturn:
        raise EndedError(why)


@pytest.fixture
async def api() -> AsyncIterator[FakeClusterApi]:
    async with FakeClusterApi() as api:
        yield api


@pytest.fixture
async def replica(api: FakeClusterApi, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Replica]:
    """It is called `a`, and asks and renews without a pause."""
    monkeypatch.setattr(election, "ASK_SECONDS", 0)
    monkeypatch.setattr(election, "RENEW_SECONDS", 0)
    async with ApiConnection(api.login) as connection:
        yield Replica(connection, "a")


async def hold(api: FakeClusterApi, holder: str) -> None:
    """Somebody writes the Lease."""
    metadata = {"namespace": "regroup-system", "name": "regroup-operator"}
    spec = {"holderIdentity": holder, "leaseTransitions": 4}
    await api.store("leases", {"metadata": metadata, "spec": spec})


def spec(api: FakeClusterApi) -> dict[str, Any]:
    (lease,) = api.all("leases")
    found: dict[str, Any] = lease["spec"]
    return found


async def end_of(replica: Replica) -> str:
    """Why it ends."""
    with pytest.raises(EndedError) as ended:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await replica.election.hold()
    return str(ended.value)


async def test_the_first_replica_makes_the_lease_and_may_write_until_ten_seconds_later(
    api: FakeClusterApi, replica: Replica
) -> None:
    await replica.election.win()
    assert spec(api)["holderIdentity"] == "a"
    assert replica.election.seconds_left() == ACT_SECONDS
    replica.now += ACT_SECONDS - 1
    assert replica.election.seconds_left() == 1
    replica.now += 1
    with pytest.raises(EndedError, match=re.escape(f"Lease {PLACE} was not renewed for 10 s")):
        replica.election.seconds_left()


async def test_nobody_may_write_before_it_leads(replica: Replica) -> None:
    with pytest.raises(EndedError):
        replica.election.seconds_left()


async def test_another_replica_is_waited_for_until_its_lease_expires(
    api: FakeClusterApi, replica: Replica
) -> None:
    await hold(api, "b")
    winning = asyncio.create_task(replica.election.win())
    await replica.election.has_read.wait()
    assert not winning.done()
    replica.now += LEASE_SECONDS
    await asyncio.wait_for(winning, DEADLINE_SECONDS)
    assert (spec(api)["holderIdentity"], spec(api)["leaseTransitions"]) == ("a", 5)


class Clocks:
    """Sleeps of the election take no time, but all replicas' clocks go on. Only while `go_on` is
    set.
    """

    def __init__(self, *replicas: Replica) -> None:
        self.replicas, self.go_on = replicas, asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        """Instead of asyncio's."""
        for each in self.replicas:
            each.now += seconds
        await self.go_on.wait()


@pytest.fixture
async def standby(
    api: FakeClusterApi, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Replica, Clocks]]:
    """Replica `b`, which has seen that `a` holds the Lease, and sleeps until `go_on` is set."""
    await replica.election.win()
    async with ApiConnection(api.login) as connection:
        other = Replica(connection, "b")
        clocks = Clocks(replica, other)
        with monkeypatch.context() as patch:
            patch.setattr(election, "ASK_SECONDS", ASK_SECONDS)
            module = SimpleNamespace(**{**vars(asyncio), "sleep": clocks.sleep})
            patch.setattr(election, "asyncio", module)
            yield other, clocks


async def seconds_to_win(
    standby: Replica, clocks: Clocks, end: Callable[[], Awaitable[None]]
) -> float:
    """From the end of the leader on, after the standby has asked once."""
    winning = asyncio.create_task(standby.election.win())
    await until("a question", lambda: standby.now > 100)
    began = 100.0  # the leader ends as soon as it was asked for: no other moment is worse
    await end()
    clocks.go_on.set()
    await asyncio.wait_for(winning, DEADLINE_SECONDS)
    return standby.now - began


async def test_another_replica_leads_within_a_second_of_the_end_of_a_leader(
    replica: Replica, standby: tuple[Replica, Clocks]
) -> None:
    assert await seconds_to_win(*standby, replica.election.release) <= RELEASED_SECONDS


async def test_another_replica_leads_sixteen_seconds_after_the_last_renewal_of_one_that_was_killed(
    standby: tuple[Replica, Clocks],
) -> None:
    async def kill() -> None:
        """It does nothing more."""

    assert LEASE_SECONDS <= await seconds_to_win(*standby, kill) <= KILLED_SECONDS


async def test_a_leader_whose_lease_another_has_ends_at_once(
    api: FakeClusterApi, replica: Replica
) -> None:
    await replica.election.win()
    await hold(api, "b")
    assert await end_of(replica) == f"b holds Lease {PLACE}"


async def test_a_leader_that_gets_no_answer_ends_when_its_time_is_over(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> NoReturn:
        replica.now += 1
        raise ClusterError("PATCH", "/lease", 0, "no answer")

    await replica.election.win()
    monkeypatch.setattr(LeaseRequests, "write", fail)
    monkeypatch.setattr(LeaseRequests, "read", fail)
    assert "was not renewed for 10 s: PATCH /lease: no answer" in await end_of(replica)


async def test_a_renewal_that_was_refused_is_tried_again(
    api: FakeClusterApi, replica: Replica
) -> None:
    await replica.election.win()
    await hold(api, "a")  # as by a renewal whose answer was lost
    replica.now += 9
    holding = asyncio.create_task(replica.election.hold())
    await until("a renewal", lambda: replica.election.seconds_left() == ACT_SECONDS)
    holding.cancel()
    assert spec(api)["holderIdentity"] == "a"


async def test_a_leader_gives_the_lease_back_and_writes_no_more(
    api: FakeClusterApi, replica: Replica
) -> None:
    await replica.election.win()
    await hold(api, "a")  # by a last renewal
    await replica.election.release()
    assert spec(api)["holderIdentity"] == ""
    with pytest.raises(EndedError):
        replica.election.seconds_left()


async def test_a_standby_gives_nothing_back(api: FakeClusterApi, replica: Replica) -> None:
    await hold(api, "b")
    await replica.election.release()
    assert spec(api)["holderIdentity"] == "b"


@pytest.mark.parametrize("status", [0, 429, 500])
async def test_a_request_that_fails_does_not_keep_the_lease_from_being_given_back(
    api: FakeClusterApi, replica: Replica, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    await replica.election.win()
    write, failures = LeaseRequests.write, iter(range(2))

    async def fail_at_first(*arguments: Any) -> Lease:
        if next(failures, None) is not None:
            raise ClusterError("PATCH", "/lease", status, "not now")
        return await write(*arguments)

    monkeypatch.setattr(LeaseRequests, "write", fail_at_first)
    await replica.election.release()
    assert spec(api)["holderIdentity"] == ""


async def test_a_request_without_an_answer_does_not_keep_the_lease_from_being_given_back(
    api: FakeClusterApi, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "RELEASE_TRY_SECONDS", 0.2)
    await replica.election.win()
    read, hangs = LeaseRequests.read, iter([True])

    async def hang_at_first(requests: LeaseRequests) -> Lease | None:
        if next(hangs, False):
            await asyncio.Event().wait()
        return await read(requests)

    monkeypatch.setattr(LeaseRequests, "read", hang_at_first)
    await replica.election.release()
    assert spec(api)["holderIdentity"] == ""


async def test_a_lease_that_cannot_be_given_back_holds_nobody_up(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: Any) -> NoReturn:
        raise ClusterError("GET", "/lease", 403, "not yours")

    await replica.election.win()
    monkeypatch.setattr(LeaseRequests, "read", refuse)
    await replica.election.release()
    assert f"cannot give Lease {PLACE} back: GET /lease: 403 not yours" in caplog.text


@pytest.mark.parametrize("holder", [None, "", "b"])
async def test_a_write_that_arrives_after_the_end_of_a_standby_does_not_make_it_the_holder(
    api: FakeClusterApi, replica: Replica, monkeypatch: pytest.MonkeyPatch, holder: str | None
) -> None:
    """It takes the Lease that an ending leader has given back, and ends itself."""
    if holder is not None:
        await hold(api, holder)
    write, late = LeaseRequests.write, list[tuple[Any, ...]]()

    async def delay(*arguments: Any) -> NoReturn:
        late.append(arguments)
        await asyncio.Event().wait()
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(LeaseRequests, "write", delay)
        winning = asyncio.create_task(replica.election.win())
        await replica.election.has_read.wait()
        replica.now += LEASE_SECONDS
        await until("a write", lambda: late)
        winning.cancel()
        await asyncio.gather(winning, return_exceptions=True)
    await replica.election.release()
    with pytest.raises(ConflictError):
        await write(*late[0])
    assert spec(api)["holderIdentity"] == ""


async def test_a_deleted_lease_is_made_again_by_its_holder(
    api: FakeClusterApi, replica: Replica
) -> None:
    await replica.election.win()
    await api.remove("leases", "regroup-system", "regroup-operator")
    holding = asyncio.create_task(replica.election.hold())
    await until("a Lease", lambda: api.all("leases"))
    holding.cancel()
    assert spec(api)["holderIdentity"] == "a"


async def test_a_slow_api_server_elects_a_leader_all_the_same(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "REQUEST_SECONDS", 0.5)

    async def read(_: LeaseRequests) -> None:
        await asyncio.sleep(0.35)

    async def write(_: LeaseRequests, _present: Any, _spec: Any) -> Lease:
        await asyncio.sleep(0.35)
        return Lease("u", "1", "a")

    monkeypatch.setattr(LeaseRequests, "read", read)
    monkeypatch.setattr(LeaseRequests, "write", write)
    await asyncio.wait_for(replica.election.win(), DEADLINE_SECONDS)
    assert replica.election.seconds_left() == ACT_SECONDS


async def test_an_answer_that_is_no_lease_ends_no_replica(
    api: FakeClusterApi, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd: list[Any] = [{}, {"metadata": None}, {"metadata": {"uid": "u"}}, {"metadata": {}}]
    answers = iter(odd)
    request = ApiConnection.request

    async def answered(self: ApiConnection, *arguments: Any, **more: Any) -> Any:
        answer = next(answers, None)
        return await request(self, *arguments, **more) if answer is None else answer

    monkeypatch.setattr(ApiConnection, "request", answered)
    await asyncio.wait_for(replica.election.win(), DEADLINE_SECONDS)
    assert spec(api)["holderIdentity"] == "a"


async def test_a_problem_is_logged_once(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = asyncio.Semaphore(0)

    async def refuse(*_: Any) -> NoReturn:
        tries.release()
        raise ClusterError("GET", "/lease", 403, "not yours")

    monkeypatch.setattr(LeaseRequests, "read", refuse)
    winning = asyncio.create_task(replica.election.win())
    for _ in range(3):
        await asyncio.wait_for(tries.acquire(), DEADLINE_SECONDS)
    winning.cancel()
    assert caplog.text.count("403 not yours") == 1
    assert not replica.election.has_read.is_set()


def test_each_process_has_an_identity_of_its_own() -> None:
    assert new_identity() != new_identity()


def test_the_clock_goes_on() -> None:
    began = elapsed_seconds()
    wait_until("a later time", lambda: elapsed_seconds() > began, seconds=5)
