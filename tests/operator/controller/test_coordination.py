"""The connection to a coordinator: what is news, what is a failure, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest

from regroup_operator.controller.coordination import Coordinators, Key, Target
from regroup_operator.errors import CoordinatorError
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.desired import Desired, Lost
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import MemberStatus
from regroup_trainer.protocol.rank_messages import Progress
from tests.support.coordinator_stub import CoordinatorStub, VersionOneStub
from tests.support.operator_simulation import make_coordinator_status
from tests.support.waiting import wait_until

KEY: Key = ("default", "gpt")


class Line:
    """Coordinators, and the news they bring."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.news: list[Key] = []
        self._arrived = asyncio.Event()
        self.coordinators = Coordinators(session, self._on_news)

    async def until(self, count: int) -> None:
        """Wait for so much news."""
        async with asyncio.timeout(20):
            while len(self.news) < count:
                self._arrived.clear()
                await self._arrived.wait()

    def _on_news(self, key: Key) -> None:
        self.news.append(key)
        self._arrived.set()


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    async with aiohttp.ClientSession() as session:
        line = Line(session)
        yield line
        line.coordinators.close()


def target(stub: CoordinatorStub, term: int = 1) -> Target:
    return Target("uid", stub.address, term, "secret")


async def test_an_answer_is_news_and_carries_the_token(line: Line) -> None:
    with CoordinatorStub(make_coordinator_status()) as stub:
        line.coordinators.follow(KEY, target(stub))
        await line.until(1)
        view = line.coordinators.view(KEY, 1, ())
        assert view.status is not None
        assert view.failures == 0
        assert stub.tokens == {"Bearer secret"}


async def test_a_step_is_no_news_and_a_lost_member_is(line: Line) -> None:
    step = Progress(generation=GenerationNumber(1, 1), rank=0, step=1, time=0.0)
    with CoordinatorStub(make_coordinator_status(progress=step)) as stub:
        line.coordinators.follow(KEY, target(stub))
        await line.until(1)
        stub.report(progress=step.model_copy(update={"step": 2}), message="step 2")
        lost = MemberStatus(
            member="m", index=0, pod="p", node="n", rank=None, step=0, lost="silent"
        )
        stub.report(members=(lost,))
        await line.until(2)
        assert len(line.news) == 2
        view = line.coordinators.view(KEY, 1, ())
        assert set(view.lost_seconds) == {"m"}
        assert view.status is not None
        assert view.status.progress is not None
        assert view.status.progress.step == 2


def silence_of(line: Line, uid: str) -> float:
    view = line.coordinators.view(KEY, 1, ("a", "b", "c"))
    return view.silent_seconds[uid]


async def test_a_worker_is_silent_since_it_was_last_heard_of_or_first_seen_to_run(
    line: Line,
) -> None:
    member = MemberStatus(member="a", index=0, pod="p", node="n", rank=0, step=0)
    with CoordinatorStub(make_coordinator_status(members=(member,), heard=("b",))) as stub:
        line.coordinators.follow(KEY, target(stub))
        await line.until(1)
        assert silence_of(line, "c") < 1.0, "nothing can be said of the time before"
        await asyncio.to_thread(wait_until, "silence", lambda: silence_of(line, "c") > 3.0)
        assert max(silence_of(line, uid) for uid in ("a", "b")) < 3.0
        stub.report(heard=("c",))
        await asyncio.to_thread(wait_until, "a sign of life", lambda: silence_of(line, "c") < 3.0)


async def test_a_coordinator_that_does_not_say_of_whom_it_hears_shows_no_silence(
    line: Line,
) -> None:
    with VersionOneStub(make_coordinator_status()) as stub:
        line.coordinators.follow(KEY, replace(target(stub), protocol=1))
        await line.until(1)
        assert line.coordinators.view(KEY, 1, ("a",)).silent_seconds == {}


async def test_probes_that_fail_are_counted_in_a_row(line: Line) -> None:
    stub = CoordinatorStub(make_coordinator_status())
    with stub:
        line.coordinators.follow(KEY, target(stub))
        await line.until(1)
    await line.until(3)
    view = line.coordinators.view(KEY, 1, ())
    assert view.failures == 2
    assert view.error == f"http://{stub.address}:8471/v1/status: Connection refused"


async def test_a_coordinator_of_another_term_is_not_believed(line: Line) -> None:
    with CoordinatorStub(make_coordinator_status(term=1)) as stub:
        line.coordinators.follow(KEY, target(stub, term=2))
        await line.until(1)
        view = line.coordinators.view(KEY, 2, ())
        assert view.status is None
        assert "a coordinator of term 1 answers, and that of term 2 is asked" in view.error
        assert line.coordinators.view(KEY, 3, ()).failures == 0


async def test_another_protocol_version_is_named(line: Line) -> None:
    with CoordinatorStub(make_coordinator_status(protocol=9, phase="running")) as stub:
        stub._status = stub._status.model_copy(update={"phase": "dancing"})
        line.coordinators.follow(KEY, target(stub))
        await line.until(1)
        assert "protocol 9" in line.coordinators.view(KEY, 1, ()).error


def make_desired() -> Desired:
    return Desired(
        revision=3, namespace="default", job="gpt", replicas=1, min_replicas=1, max_replicas=1,
        train=TrainConfig(), directory="/x",
    )  # fmt: skip


async def test_the_coordinator_gets_what_the_spec_asks_for(line: Line) -> None:
    with CoordinatorStub(make_coordinator_status()) as stub:
        await line.coordinators.put_desired(target(stub), make_desired())
        assert stub.desired == [make_desired()]


async def test_a_missing_coordinator_is_an_error_that_names_the_address(line: Line) -> None:
    missing = Target("uid", "127.0.83.1", 1, "secret")
    with pytest.raises(CoordinatorError, match=r"127\.0\.83\.1"):
        await line.coordinators.put_desired(missing, make_desired())


async def test_a_coordinator_of_protocol_1_is_understood_and_sent_what_it_knows(line: Line) -> None:
    with VersionOneStub(make_coordinator_status(message="training: step 7")) as stub:
        old = replace(target(stub), protocol=1)
        line.coordinators.follow(KEY, old)
        await line.until(1)
        view = line.coordinators.view(KEY, 1, ())
        assert view.status is not None
        assert (view.status.protocol, view.status.message) == (1, "training: step 7")
        assert [r.restored_from for r in view.status.recoveries][:2] == ["Peers", "Snapshot"]
        await line.coordinators.put_desired(old, make_desired())
        await line.coordinators.post_lost(old, Lost(members=("m",), reason="gone"))
        assert (stub.desired, [lost.members for lost in stub.lost]) == ([make_desired()], [("m",)])
