"""The connection to a coordinator: what is news, what is a failure, what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any, NoReturn

import aiohttp
import pytest

from bench.false_losses import full_load
from regroup_operator.api.resource import Key
from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS, most_to_report
from regroup_operator.controller import coordination, metered_answers
from regroup_operator.controller.agent_survey import QUESTIONS_OF_A_NAMESPACE, Agent
from regroup_operator.controller.contact_clock import TICK_SECONDS, ContactClock
from regroup_operator.controller.coordination import (
    ANSWERS_A_SECOND,
    LINES_A_SECOND,
    PAUSE_SECONDS,
    Coordinators,
    answer_pause,
    fits,
    line_seconds,
    rounds_share,
)
from regroup_operator.controller.coordinator_requests import (
    LARGE_BYTES,
    LATE_SECONDS,
    TIMEOUT_SECONDS,
    WAIT_SECONDS,
    LineBuffer,
    open_session,
)
from regroup_operator.controller.followed_coordinator import (
    ANSWER_BYTES,
    FollowedCoordinator,
    Target,
)
from regroup_operator.controller.operator_metrics import internal_errors
from regroup_operator.controller.work_queue import WorkQueue
from regroup_operator.decide.coordinator_evidence import UNANSWERED_SECONDS, UNREADABLE_ANSWERS
from regroup_operator.errors import CoordinatorError, NoWatchError
from regroup_operator.observe.coordinator_answer import MOST_BYTES
from regroup_operator.observe.observed import CoordinatorView
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.desired import CoordinatorContact, Desired, Lost
from regroup_trainer.protocol.environment import AGENT_METRICS_PORT, COORDINATOR_PORT
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import ASK_LINE, WATCH_LINE_BYTES, MemberStatus
from regroup_trainer.protocol.rank_messages import Progress
from tests.support.agent_stub import AgentStub
from tests.support.coordinator_fleet import CoordinatorFleet
from tests.support.coordinator_stub import CoordinatorStub, VersionOneStub
from tests.support.loopback_server import LoopbackServer, QuietHandler
from tests.support.operator_simulation import make_coordinator_status
from tests.support.own_addresses import own_addresses
from tests.support.waiting import until, wait_until

KEY: Key = ("default", "gpt")
_addresses = own_addresses(91)


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
            member="m", index=0, pod="p", node="n", rank=None, step=0, lost="unresponsive"
        )
        stub.report(members=(lost,))
        await line.until(2)
        assert len(line.news) == 2
        view = line.coordinators.view(KEY, 1, ())
        assert set(view.lost_seconds) == {"m"}
        assert view.status is not None
        assert view.status.progress is not None
        assert view.status.progress.step == 2


async def test_a_status_that_fits_no_line_is_asked_for(line: Line) -> None:
    with CoordinatorStub(make_coordinator_status(message="training")) as stub:
        stub.asks = True
        line.coordinators.follow(KEY, target(stub))
        await line.until(1)
        stub.report(phase="recovering")
        await line.until(2)
        status = view_of(line).status
        assert status is not None
        assert (status.phase, status.message) == ("recovering", "training")


async def test_a_coordinator_of_an_older_release_is_polled(line: Line) -> None:
    with CoordinatorStub(make_coordinator_status()) as stub:
        stub.has_watch = False
        line.coordinators.follow(KEY, target(stub))
        await line.until(1)
        stub.report(phase="recovering")
        await line.until(2)
        assert stub.watches == 1


async def test_one_connection_brings_all_news(line: Line) -> None:
    with CoordinatorStub(make_coordinator_status()) as stub:
        line.coordinators.follow(KEY, target(stub))
        for number in range(1, 5):
            await line.until(number)
            stub.report(revision=number + 1)
        await line.until(5)
        assert stub.watches < 5


async def test_a_watch_that_ends_counts_as_no_answer_until_there_is_another(line: Line) -> None:
    with CoordinatorStub(make_coordinator_status()) as stub:
        line.coordinators.follow(KEY, target(stub))
        await line.until(1)
        stub.end_watches()
        await line.until(2)
        await until("another", lambda: stub.watches > 1 and not view_of(line).failures)
        assert view_of(line).unanswered_seconds == 0.0


@contextlib.asynccontextmanager
async def frozen_after_an_answer(line: Line) -> AsyncIterator[CoordinatorStub]:
    """A coordinator that is followed, has answered once, and stands still."""
    with CoordinatorStub(make_coordinator_status()) as stub:
        line.coordinators.follow(KEY, target(stub))
        await line.until(1)
        stub.answers.clear()
        try:
            yield stub
        finally:
            stub.answers.set()


async def test_a_coordinator_that_stands_still_is_unresponsive_as_soon_as_its_watch_is(
    line: Line,
) -> None:
    """A power loss closes no connection. The clock leaves out what the operator did not run."""
    async with frozen_after_an_answer(line):
        await line.until(2)
        view = view_of(line)
        assert 0.0 < view.unanswered_seconds < UNANSWERED_SECONDS + 2
        assert view.error.endswith("/v1/watch: it takes too long")
        await until(
            "it to be unresponsive",
            lambda: view_of(line).unanswered_seconds >= UNANSWERED_SECONDS,
        )


async def test_a_pause_before_the_next_line_does_not_delay_that_a_watch_is_unresponsive(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "answer_pause", lambda *_: 0.9)
    async with frozen_after_an_answer(line):
        await line.until(2)
        assert view_of(line).unanswered_seconds < line_seconds(1) + LATE_SECONDS + 0.4


async def test_a_watch_whose_period_fits_no_longer_begins_again_with_another(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lines would come as often as when few were followed, for ever."""
    followed = 1
    monkeypatch.setattr(coordination, "line_seconds", lambda _: line_seconds(followed))
    monkeypatch.setattr(coordination, "RENEWED_SECONDS", 0.0)
    with CoordinatorStub(make_coordinator_status()) as stub:
        line.coordinators.follow(KEY, target(stub))
        await line.until(1)
        followed = 1000
        await until("another watch", lambda: len(stub.every) > 1)
        assert stub.every == ["1.00", "5.00"]
        assert view_of(line).failures == 0


@pytest.mark.parametrize(
    ("began_with", "followed", "goes_on"),
    [(1, 40, True), (1, 240, True), (1, 300, False), (1000, 850, True), (1000, 10, False)],
)
def test_a_watch_goes_on_while_its_period_fits_about_how_many_are_followed(
    began_with: int, followed: int, goes_on: bool
) -> None:
    assert fits(line_seconds(began_with), followed) == goes_on


@pytest.mark.parametrize("followed", [1, 40, 80, 360, 600, 1000, 5000])
def test_an_unresponsive_watch_is_noticed_as_soon_as_a_poll_unless_there_are_many(
    followed: int,
) -> None:
    poll = max(PAUSE_SECONDS, followed / ANSWERS_A_SECOND) + WAIT_SECONDS + TIMEOUT_SECONDS
    watch = line_seconds(followed) + LATE_SECONDS
    assert UNANSWERED_SECONDS < watch <= (poll if followed <= 360 else 7.1) + 1e-9
    assert followed / line_seconds(followed) <= max(LINES_A_SECOND, followed / 5)


def chunks(text: str, size: int) -> list[bytes]:
    data = text.encode()
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_the_newest_line_of_a_stream_is_found_however_it_is_cut(size: int) -> None:
    buffer, text = LineBuffer(), '{"a":1}\n\n\n{"b":22}\n{"c":3}\n\n{"d'
    found = [line for chunk in chunks(text, size) if (line := buffer.newest(chunk))]
    assert found[-1] == b'{"c":3}'
    assert buffer.newest(b'":4}\n') == b'{"d":4}'


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_that_does_not_end_is_not_kept(end: bytes) -> None:
    buffer = LineBuffer()
    assert buffer.newest(b"x" * (WATCH_LINE_BYTES - 1)) == b""
    with pytest.raises(CoordinatorError, match="above 65536 bytes"):
        buffer.newest(b"x" + end)


def no_contact_seconds_of(line: Line, uid: str) -> float:
    """In whole seconds."""
    view = line.coordinators.view(KEY, 1, ("a", "b", "c"))
    return round(view.no_contact_seconds[uid])


class Followed:
    """A coordinator that has answered once: `a` is a member, and `b` is about to be one. The clock
    of contact stands unless `pass_seconds` moves it.
    """

    def __init__(self, line: Line, stub: CoordinatorStub) -> None:
        self._line, self._stub = line, stub
        self._seconds = 0.0
        self._clock = line.coordinators._clock = ContactClock(lambda: self._seconds)

    def pass_seconds(self, seconds: int) -> None:
        """Let the clock run on."""
        for _ in range(10 * seconds):
            self._seconds += TICK_SECONDS
            self._clock.tick()

    async def next_line(self) -> None:
        """Wait until the coordinator has had contact with `a` now."""
        await until("a line", lambda: no_contact_seconds_of(self._line, "a") == 0)

    async def report_contact_with(self, *uids: str) -> None:
        """Have it report that, and wait until it is taken over."""
        self._stub.report(agents_in_contact=uids)

        def has_arrived() -> bool:
            status = self._line.coordinators.view(KEY, 1, ("a", "b", "c")).status
            return status is not None and status.agents_in_contact == uids

        await until("the report", has_arrived)


@contextlib.asynccontextmanager
async def followed_with_workers(line: Line) -> AsyncIterator[Followed]:
    member = MemberStatus(member="a", index=0, pod="p", node="n", rank=0, step=0)
    with CoordinatorStub(
        make_coordinator_status(members=(member,), agents_in_contact=("b",))
    ) as stub:
        followed = Followed(line, stub)
        line.coordinators.follow(KEY, target(stub))
        await line.until(1)
        yield followed


async def test_an_empty_line_is_a_sign_of_life_of_all_in_contact_with_the_coordinator(
    line: Line,
) -> None:
    async with followed_with_workers(line) as followed:
        assert no_contact_seconds_of(line, "c") == 0
        followed.pass_seconds(10)
        await followed.next_line()
        assert [no_contact_seconds_of(line, uid) for uid in ("b", "c")] == [0, 10]
        await followed.report_contact_with()
        followed.pass_seconds(10)
        await followed.next_line()
        assert [no_contact_seconds_of(line, uid) for uid in ("b", "c")] == [10, 20]


async def test_a_worker_is_unresponsive_since_its_last_contact_or_since_it_was_first_seen_to_run(
    line: Line,
) -> None:
    async with followed_with_workers(line) as followed:
        followed.pass_seconds(10)
        assert no_contact_seconds_of(line, "c") == 0, "nothing is known of the time before"
        followed.pass_seconds(10)
        assert no_contact_seconds_of(line, "c") == 10
        await followed.report_contact_with("c")
        assert no_contact_seconds_of(line, "c") == 0
        followed.pass_seconds(10)
        await followed.next_line()
        await followed.report_contact_with()
        followed.pass_seconds(10)
        assert no_contact_seconds_of(line, "c") == 10


async def test_a_coordinator_that_does_not_report_contacts_makes_no_worker_unresponsive(
    line: Line,
) -> None:
    with VersionOneStub(make_coordinator_status()) as stub:
        line.coordinators.follow(KEY, replace(target(stub), protocol=1))
        await line.until(1)
        assert line.coordinators.view(KEY, 1, ("a",)).no_contact_seconds == {}


def view_of(line: Line, key: Key = KEY) -> CoordinatorView:
    return line.coordinators.view(key, 1, ())


async def test_time_without_an_answer_is_counted_from_the_last_answer_to_the_next(
    line: Line,
) -> None:
    stub = CoordinatorStub(make_coordinator_status())
    with stub:
        line.coordinators.follow(KEY, target(stub))
        await line.until(1)
        assert view_of(line).unanswered_seconds == 0.0
    await line.until(2)
    await until("probes without an answer", lambda: view_of(line).failures >= 3)
    await until("time without contact", lambda: view_of(line).unanswered_seconds > 2.0)
    assert view_of(line).error == f"http://{stub.address}:8471/v1/watch: Connection refused"
    assert len(line.news) == 2, "each further one is no news"


async def test_an_answer_that_is_no_status_is_an_answer(line: Line) -> None:
    with CoordinatorStub(make_coordinator_status()) as stub:
        stub.code = 401
        line.coordinators.follow(KEY, target(stub), [Agent("a", "127.0.82.1")])
        await until("a refusal", lambda: "401" in view_of(line).error)
        stub.code, large = 200, "x" * (MOST_BYTES + 1)
        stub.encode = lambda status: large  # type: ignore[method-assign]
        await until("too much", lambda: "above" in view_of(line).error)
        stub.encode = lambda status: "[]"  # type: ignore[method-assign]
        await until("nonsense", lambda: "not taken" in view_of(line).error)
        view = view_of(line)
        assert view.failures >= 3
        assert (view.unanswered_seconds, view.contacts) == (0.0, {})


async def test_a_refusal_is_quoted_in_one_line_without_escapes(line: Line) -> None:
    with CoordinatorStub(make_coordinator_status()) as stub:
        stub.code, forged = 401, "no\n2026-01-01 INFO other/gpt: \x1b[2Jcompleted"
        stub.encode = lambda status: forged  # type: ignore[method-assign]
        line.coordinators.follow(KEY, target(stub))
        await until("a refusal", lambda: "401" in view_of(line).error)
        assert view_of(line).error.isprintable()
        assert view_of(line).error.endswith(r"401 no\n2026-01-01 INFO other/gpt: \x1b[2Jcompleted")


async def test_agents_are_asked_with_the_token_while_the_coordinator_does_not_answer(
    line: Line,
) -> None:
    answered = CoordinatorContact(term=1, unanswered_seconds=0.0)
    with AgentStub(answered) as one, AgentStub(answered) as two:
        agents = [Agent("a", one.address), Agent("b", two.address), Agent("c", "127.0.82.1")]
        with CoordinatorStub(make_coordinator_status()) as stub:
            line.coordinators.follow(KEY, target(stub), agents)
            await line.until(1)
        await until(
            "what they report", lambda: view_of(line).contacts == {"a": answered, "b": answered}
        )
        news = len(line.news)
        assert set(one.tokens) == {"Bearer secret"}
        one.contact = two.contact = CoordinatorContact(term=1, unanswered_seconds=3.0)
        await line.until(news + 1)
        assert {c.unanswered_seconds for c in view_of(line).contacts.values()} == {3.0}
    await until("what they reported to be too old", lambda: not view_of(line).contacts)


async def test_agents_are_not_asked_while_the_coordinator_answers(line: Line) -> None:
    with (
        AgentStub(CoordinatorContact(unanswered_seconds=0.0)) as agent,
        CoordinatorStub(make_coordinator_status()) as stub,
    ):
        line.coordinators.follow(KEY, target(stub), [Agent("a", agent.address)])
        await line.until(1)
        for _ in range(3):
            stub.report(phase="recovering", revision=len(line.news) + 1)
            await line.until(len(line.news) + 1)
        assert agent.tokens == []


async def test_agents_are_no_witnesses_when_many_coordinators_stop_answering_at_once(
    line: Line,
) -> None:
    nobody = Target("uid", "127.0.83.1", 1, "secret")
    for number in range(10):
        line.coordinators.follow(("default", f"gpt{number}"), nobody)
    await until(
        "the outage to be noticed",
        lambda: not view_of(line, ("default", "gpt0")).trusts_agents,
    )


async def test_coordinators_of_one_namespace_that_fail_leave_others_their_witnesses(
    line: Line,
) -> None:
    nobody, other = Target("uid", "127.0.83.1", 1, "secret"), ("other", "gpt")
    unanswered = CoordinatorContact(term=1, unanswered_seconds=60.0)
    with AgentStub(unanswered) as agent:
        for number in range(30):
            line.coordinators.follow(("default", f"gpt{number}"), nobody)
        await until("them", lambda: not view_of(line, ("default", "gpt0")).trusts_agents)
        line.coordinators.follow(other, nobody, [Agent("a", agent.address)])
        await until("a witness", lambda: view_of(line, other).contacts == {"a": unanswered})
        assert view_of(line, other).trusts_agents


async def test_jobs_of_a_namespace_share_its_places_for_questions(line: Line) -> None:
    nobody, keys = Target("uid", "127.0.83.1", 1, "secret"), [("a", "x"), ("a", "y"), ("b", "x")]
    for key in keys:
        line.coordinators.follow(key, nobody)
    first, second, other = (line.coordinators._followers[key].survey.places for key in keys)
    assert first is second
    assert first is not other
    assert first._value == QUESTIONS_OF_A_NAMESPACE


def stand_still(seconds: float) -> None:
    """Keep the event loop from running, as an overloaded machine does."""
    time.sleep(seconds)


@pytest.mark.parametrize("kind", [CoordinatorStub, VersionOneStub])
async def test_answers_that_this_process_was_too_late_to_read_count_as_answers(
    line: Line, kind: type[CoordinatorStub]
) -> None:
    with kind(make_coordinator_status()) as stub:
        line.coordinators.follow(KEY, replace(target(stub), protocol=1))
        await line.until(1)
        if not stub.has_watch:
            stub.answers.clear()
            stub.tokens.clear()
            await until("a request", lambda: stub.tokens)
            stub.answers.set()
        stand_still(UNANSWERED_SECONDS + 0.5)
        times = []
        for _ in range(100):
            times.append(view_of(line).unanswered_seconds)
            await asyncio.sleep(0)
        assert max(times) < 1.0


async def test_a_line_that_comes_after_this_process_stood_still_is_in_time(line: Line) -> None:
    async with frozen_after_an_answer(line) as stub:
        stand_still(line_seconds(1) + LATE_SECONDS + 0.5)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not view_of(line).failures
        stub.answers.set()
        stub.report(world_size=7)
        await until("the line", lambda: "world_size=7" in repr(view_of(line).status))
        assert stub.watches == 1


async def test_a_process_that_is_late_in_each_round_has_an_answer_all_the_same(line: Line) -> None:
    with CoordinatorStub(make_coordinator_status()) as stub:
        line.coordinators.follow(KEY, target(stub))
        for _ in range(10):
            stand_still(1.2)
            await asyncio.sleep(0)
            if view_of(line).status is not None:
                break
        view = view_of(line)
        assert (view.status is not None, view.failures) == (True, 0)


class FollowedFleet:
    """A fleet of which each coordinator is followed."""

    def __init__(self, coordinators: Coordinators, fleet: CoordinatorFleet) -> None:
        self.fleet = fleet
        self._coordinators = coordinators
        self._keys = [("default", address) for address in fleet.addresses]
        for key in self._keys:
            coordinators.follow(key, Target("uid", key[1], 1, "secret"), workers=8)

    def all_answer(self) -> bool:
        """Whether each has answered, and does so still."""
        return all(view.status and not view.failures for view in self._views())

    async def until_each_has_sent(self, lines: int) -> float:
        """Wait for so many lines of each. Returns the most seconds without an answer that a view
        has shown meanwhile.
        """
        before, longest = self.fleet.answers_of_each(), 0.0

        def have_sent_them() -> bool:
            nonlocal longest
            longest = max(longest, *(view.unanswered_seconds for view in self._views()))
            counts = zip(self.fleet.answers_of_each(), before, strict=True)
            return min(now - then for now, then in counts) >= lines

        await asyncio.to_thread(wait_until, f"{lines} lines of each", have_sent_them, 120)
        return longest

    def _views(self) -> Iterator[CoordinatorView]:
        return (self._coordinators.view(key, 1, ()) for key in self._keys)


@contextlib.asynccontextmanager
async def followed_fleet(count: int, *, with_watch: bool = True) -> AsyncIterator[FollowedFleet]:
    """Inside, so many coordinators are followed, and each has answered."""
    async with open_session() as session:
        coordinators = Coordinators(session, lambda _key: None)
        with CoordinatorFleet(count, with_watch=with_watch) as fleet:
            followed = FollowedFleet(coordinators, fleet)
            try:
                await until("an answer of each", followed.all_answer, 120)
                yield followed
                await until("an answer of each", followed.all_answer, 60)
            finally:
                coordinators.close()


@pytest.mark.parametrize("come_alone", [True, False])
async def test_empty_lines_that_come_alone_keep_a_watch_alive_and_wake_nobody(
    monkeypatch: pytest.MonkeyPatch, *, come_alone: bool
) -> None:
    """Others are read as lines are, with the same outcome."""
    read: list[bytes] = []
    contacts: list[float] = []
    take, note_contact = Coordinators._take, FollowedCoordinator.note_contact

    async def noting_take(self: Coordinators, *given: Any) -> float:
        read.append(given[-1])
        return await take(self, *given)

    def noting_contact(self: FollowedCoordinator, now: float) -> None:
        contacts.append(now)
        note_contact(self, now)

    monkeypatch.setattr(Coordinators, "_take", noting_take)
    monkeypatch.setattr(FollowedCoordinator, "note_contact", noting_contact)
    if not come_alone:
        monkeypatch.setattr(metered_answers, "EMPTY_LINE", b"something else")
    async with followed_fleet(1) as followed:
        begun = len(contacts)
        await until("three signs of life", lambda: len(contacts) >= begun + 3)
        assert followed.all_answer()
        assert read.count(b"") == (0 if come_alone else len(contacts) - begun)
        with followed.fleet.frozen():
            await until("none any more", lambda: not followed.all_answer(), 10)


async def test_each_of_a_thousand_coordinators_answers_again_and_again() -> None:
    async with followed_fleet(1000) as followed:
        await followed.until_each_has_sent(3)


@pytest.mark.long
async def test_none_of_a_thousand_coordinators_looks_dead_beside_a_busy_process_for_each_core() -> (
    None
):
    async with followed_fleet(1000) as followed:
        try:
            followed.fleet.go_first()
        except PermissionError:
            pytest.skip("needs the right to raise the priority of a process")
        with full_load(seconds=180.0):
            assert await followed.until_each_has_sent(10) < UNANSWERED_SECONDS


async def cpu_share(count: int, *, with_watch: bool) -> float:
    """Of a core, while so many coordinators only train."""
    async with followed_fleet(count, with_watch=with_watch) as followed:
        fleet = followed.fleet
        begun, used, before = time.monotonic(), time.process_time(), fleet.answers()
        have_come = lambda: fleet.answers() - before > 5 * count  # noqa: E731
        await asyncio.to_thread(wait_until, "answers", have_come, 120)
        return (time.process_time() - used) / (time.monotonic() - begun)


@pytest.mark.long
async def test_watches_of_quiet_coordinators_cost_a_fraction_of_polls() -> None:
    """COORDINATORS=1000 makes it a thousand."""
    count = int(os.environ.get("COORDINATORS", "300"))
    polls = await cpu_share(count, with_watch=False)
    watches = await cpu_share(count, with_watch=True)
    print(f"{count} quiet coordinators: polls {polls:.1%} of a core, watches {watches:.1%}")
    assert watches < polls / 3


@pytest.mark.parametrize("followed", [1, 100, 1000])
@pytest.mark.parametrize("cost", [1e-4, 1e-3, 0.01, 2.0])
def test_costly_answers_take_no_more_of_the_operators_time_than_ordinary_ones(
    followed: int, cost: float
) -> None:
    load = followed * cost / answer_pause(0.2, followed, cost, workers=1)
    assert load <= 0.41
    assert answer_pause(0.2, followed, 1e-3, workers=1) == max(0.2, followed / 400)


def test_a_job_that_may_grow_without_end_gets_no_more_of_the_operators_time_than_the_largest() -> (
    None
):
    """A tenant raises `maxReplicas` once the job has started. An answer that takes 20 s."""
    workers = most_to_report(1_000_000, 2, DEFAULT_MAX_WORKERS)
    assert answer_pause(0.2, 1, cost=20.0, workers=workers) > 40.0


async def test_the_pause_follows_from_what_the_last_answer_took(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[tuple[float, int]] = []

    def note(least: float, followed: int, cost: float, workers: int) -> float:
        pauses.append((cost, workers))
        return least

    monkeypatch.setattr(coordination, "answer_pause", note)
    with CoordinatorStub(make_coordinator_status()) as stub:
        many = json.dumps({"numbers": [1] * 9_000})
        stub.encode = lambda status: many  # type: ignore[method-assign]
        line.coordinators.follow(KEY, target(stub), workers=1)
        await until("a pause", lambda: pauses)
        cost, workers = pauses[0]
        assert cost > 1e-3
        assert workers == 1


class Rounds:
    """A queue of jobs with one worker, whose rounds take so much of the thread."""

    def __init__(self, seconds: float) -> None:
        self.ended: Counter[Key] = Counter()
        self._seconds = seconds
        self._queue: WorkQueue[Key] = WorkQueue(lambda key: key[0], most_of_a_group=1)

    async def run(self, coordinators: Coordinators) -> None:
        """Until it is cancelled."""
        while True:
            key, _ = await self._queue.take()
            ends_at = time.thread_time() + self._seconds
            while time.thread_time() < ends_at:
                pass
            coordinators.charge_round(key, self._seconds, 1)
            self.ended[key] += 1
            self._queue.done(key)
            await asyncio.sleep(0)

    async def most_rounds_meanwhile(self, stub: CoordinatorStub) -> int:
        """Have the coordinator of KEY report something. Returns the most rounds that another job
        has had when that of KEY has ended.
        """
        before = self.ended.copy()
        stub.report(revision=before[KEY] + 1)
        await until("a round", lambda: self.ended[KEY] > before[KEY])
        return max((self.ended[key] - before[key] for key in self.ended if key != KEY), default=0)

    def add(self, key: Key) -> None:
        """News of this job."""
        self._queue.add(key)


async def change_all_the_time(stubs: Sequence[CoordinatorStub]) -> None:
    """Ten times a second, until it is cancelled: an answer is read five times a second."""
    for revision in itertools.count(2):
        for stub in stubs:
            stub.report(revision=revision)
        await asyncio.sleep(0.1)


async def read_on(coordinators: Coordinators, keys: Sequence[Key], changes: int) -> None:
    """Wait until so many more changes of each of these coordinators were read."""

    def newest(key: Key) -> int:
        status = coordinators.view(key, 1, ()).status
        return status.revision if status else 0

    wanted = {key: newest(key) + changes for key in keys}
    await until("more changes", lambda: all(newest(key) >= wanted[key] for key in keys), every=0.05)


async def test_coordinators_that_change_all_the_time_delay_themselves_alone() -> None:
    """Without a bound, their rounds take all of the thread."""
    rounds = Rounds(0.02)
    tenant = [("tenant", f"gpt{number}") for number in range(10)]
    async with open_session() as session:
        coordinators = Coordinators(session, rounds.add)
        with contextlib.ExitStack() as started:
            stubs = [
                started.enter_context(CoordinatorStub(make_coordinator_status()))
                for _ in range(len(tenant) + 1)
            ]
            working = asyncio.create_task(rounds.run(coordinators))
            for key, stub in zip([*tenant, KEY], stubs, strict=True):
                coordinators.follow(key, target(stub), workers=1)
            flapping = asyncio.create_task(change_all_the_time(stubs[:-1]))
            await until("their bursts", lambda: coordinators._in_debt == set(tenant))
            assert min(rounds.ended[key] for key in tenant) >= 5
            before, begun = rounds.ended.copy(), time.monotonic()
            pauses = []
            for _ in range(4):
                reported_at = time.monotonic()
                assert await rounds.most_rounds_meanwhile(stubs[-1]) <= 2
                pauses.append(time.monotonic() - reported_at)
                assert KEY not in coordinators._in_debt
                await read_on(coordinators, tenant, changes=10)
            seconds = time.monotonic() - begun
            assert coordinators._in_debt == set(tenant)
            flapping.cancel()
            working.cancel()
            coordinators.close()
            assert not coordinators._in_debt
    of_tenant = sum((rounds.ended - before)[key] for key in tenant)
    assert of_tenant * 0.02 < 0.3 * seconds, of_tenant
    assert max(pauses) < 1.0


async def test_news_in_a_burst_begin_a_round_each_and_a_lost_coordinator_waits_for_none(
    line: Line,
) -> None:
    """A recovery brings about five. A coordinator in debt that dies is noticed as soon as others,
    but for a second.
    """
    with CoordinatorStub(make_coordinator_status()) as stub:
        line.coordinators.follow(KEY, target(stub))
        await line.until(1)
        for number in range(2, 12):
            line.coordinators.charge_round(KEY, 0.009, 4)
            stub.report(revision=number)
            await line.until(number)
        line.coordinators.charge_round(KEY, 5.0, 4)
        stub.report(revision=20)
        await until("the answer", lambda: (s := view_of(line).status) and s.revision == 20)
        assert len(line.news) == 11
        stub.answers.clear()
        stub.end_watches()
        try:
            await line.until(12)
        finally:
            stub.answers.set()


def test_rounds_of_news_of_a_thousand_jobs_take_half_of_the_thread_at_most() -> None:
    for in_debt in (1, 50, 1000):
        assert in_debt * rounds_share(1, in_debt) <= 0.52
    assert rounds_share(4096, 1) < 0.06


class LargeAnswer(LoopbackServer):
    """A coordinator that answers the same bytes at once, or stops after so many of them until its
    `rest` may follow. A context manager. Its watch says to ask, and ends.
    """

    def __init__(self, answer: bytes, first: int | None = None) -> None:
        self.address = next(_addresses)
        self.rest = threading.Event()
        self._answer, self._first = answer, first
        super().__init__(self.address, COORDINATOR_PORT)

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(QuietHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                if self.path.startswith("/v1/watch"):
                    self.end_headers()
                    with contextlib.suppress(OSError):
                        self.wfile.write(ASK_LINE + b"\n")
                    return
                self.send_header("Content-Length", str(len(server._answer)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(memoryview(server._answer)[: server._first])
                    if server._first is not None and server.rest.wait(30):
                        self.wfile.write(memoryview(server._answer)[server._first :])

        return Handler


PIECES = b"1\r\n \r\n" * 20_000
"""Of a body, each of one byte: reading them takes a hundred times what a status does."""


class PiecesServer(LoopbackServer):
    """Answers with `first`, then with spaces that come one by one, then with `last`. A context
    manager. Its watch says to ask without end, and each other answer ends its connection.
    """

    def __init__(self, first: bytes, last: bytes, port: int = COORDINATOR_PORT) -> None:
        self.address = next(_addresses)
        self.asked = 0
        self._answer = b"%x\r\n%s\r\n" % (len(first), first) + PIECES + last
        super().__init__(self.address, port)

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Connection", "close")
                is_watch = self.path.startswith("/v1/watch")
                if not is_watch:
                    server.asked += 1
                    self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(b"" if is_watch else server._answer)
                    while is_watch and not server._ends.wait(0.05):
                        self.wfile.write(ASK_LINE + b"\n")

        return Handler


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between answers. They end at once."""
    found: list[float] = []

    def note(least: float, followed: int, cost: float, workers: int) -> float:
        found.append(answer_pause(least, followed, cost, workers))
        return 0.01

    monkeypatch.setattr(coordination, "answer_pause", note)
    return found


STATUS = make_coordinator_status().model_dump_json().encode()


@pytest.mark.parametrize(("jobs", "most"), [(1, 0.03), (12, 0.25)])
@pytest.mark.parametrize(
    ("first", "last"), [(STATUS, b"0\r\n\r\n"), (b"no status", b"0\r\n\r\n"), (STATUS, b"")]
)
async def test_answers_in_chunks_of_a_byte_take_a_small_part_of_the_thread(
    jobs: int, most: float, first: bytes, last: bytes, pauses: list[float]
) -> None:
    """Each over a connection of its own. The time of the thread is compared with that of the pauses
    that would follow, half of which may be left out by chance.
    """
    async with open_session() as session:
        coordinators = Coordinators(session, lambda _key: None)
        with contextlib.ExitStack() as started:
            for number in range(jobs):
                server = started.enter_context(PiecesServer(first, last))
                there = Target("uid", server.address, 1, "secret")
                coordinators.follow(("default", f"gpt{number}"), there, workers=1)
            used = time.thread_time()
            await until("answers", lambda: len(pauses) >= 4 + 2 * jobs)
            used = time.thread_time() - used
            coordinators.close()
    assert used < most * sum(pauses) / 2 / jobs


async def test_agents_that_answer_more_than_a_line_take_little_of_the_thread() -> None:
    """Neither their answers to a question are read nor those to an address."""
    contact = CoordinatorContact(term=1, unanswered_seconds=9.0).model_dump_json().encode()
    async with open_session() as session:
        coordinators = Coordinators(session, lambda _key: None)
        with PiecesServer(contact, b"0\r\n\r\n", AGENT_METRICS_PORT) as agent:
            agents = [Agent(f"uid-{number}", agent.address) for number in range(4)]
            coordinators.follow(KEY, Target("uid", "127.0.83.1", 1, "secret"), agents)
            used = time.thread_time()
            await until("questions", lambda: agent.asked >= 8)
            used = time.thread_time() - used
            assert not coordinators.view(KEY, 1, ()).contacts
            coordinators.close()
    assert used < 8 * 0.01


def large_answer(members: int, lost: str) -> bytes:
    """The answer of a coordinator with so many members, each with a reason of that length."""
    given = {"member": "m" * 36, "index": 1, "pod": "p" * 57, "node": "n", "rank": None, "step": 0}
    status = json.loads(make_coordinator_status().model_dump_json())
    return json.dumps({**status, "members": [{**given, "lost": lost}] * members}).encode()


PEAK_MIB = 128
"""Of ten answers of 4 MiB at once. The chart allows the operator 512 MiB."""


@pytest.mark.parametrize("members", [4_800, 12_000])
async def test_ten_answers_of_4_mib_at_once_take_little_memory(line: Line, members: int) -> None:
    answer = large_answer(members, "x" * ((MOST_BYTES - 200_000) // members - 170))
    assert 0.85 * MOST_BYTES < len(answer) < MOST_BYTES
    with contextlib.ExitStack() as started:
        fleet = [started.enter_context(LargeAnswer(answer)) for _ in range(10)]
        tracemalloc.start()
        started.callback(tracemalloc.stop)
        keys = [(f"ns{number}", "gpt") for number in range(10)]
        targets = [Target("uid", each.address, 1, "secret") for each in fleet]
        for key, each in zip(keys, targets, strict=True):
            line.coordinators.follow(key, each)
        asked = line.coordinators.has_asked
        await until("all answers", lambda: all(map(asked, keys, targets)), 120)
        _, peak = tracemalloc.get_traced_memory()
        assert peak < PEAK_MIB * 2**20, f"{peak >> 20} MiB"


async def test_what_is_kept_of_all_answers_has_a_bound_and_each_namespace_a_share_of_it(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job may have 4,096 workers, of which two pods are there. The answers come at once."""
    answer = large_answer(500, "x" * 3600)
    tenant = [("tenant", f"gpt{number}") for number in range(64)]
    keys = [*tenant, ("other", "gpt")]
    answer_once(monkeypatch, {keys[-1]: STATUS}, answer)
    tracemalloc.start()
    try:
        for key in keys:
            line.coordinators.follow(key, NOBODY)
        has_asked = line.coordinators.has_asked
        await until("all answers", lambda: all(has_asked(key, NOBODY) for key in keys), 120)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < ANSWER_BYTES / 2 + 16 * 2**20, f"{kept >> 20} MiB"
    views = {key: line.coordinators.view(key, 1, ()) for key in keys}
    assert views[keys[-1]].status is not None
    with_room = [key for key in tenant if views[key].status is not None]
    assert len(with_room) > 8
    for key in set(tenant) - set(with_room):
        assert "there is no room for its answer: those of" in views[key].error
        assert views[key].unanswered_seconds == 0.0


NOBODY = Target("uid", "198.19.0.9", 1, "secret")


def answer_once(monkeypatch: pytest.MonkeyPatch, of: Mapping[Key, bytes], others: bytes) -> None:
    """Without requests: coordinators of an older release, each of which answers once. `of`: the
    answers of some jobs.
    """

    async def answer(_: Coordinators, key: Key, *_more: object) -> bytearray:
        return bytearray(of.get(key, others))

    async def no_watch(*_: object) -> NoReturn:
        raise NoWatchError("none")

    monkeypatch.setattr(Coordinators, "_status", answer)
    monkeypatch.setattr(Coordinators, "_watch", no_watch)
    monkeypatch.setattr(coordination, "answer_pause", lambda *_: 600.0)


async def test_a_dozen_jobs_of_4096_workers_are_followed(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one namespace."""
    answer_once(monkeypatch, {}, large_answer(4096, ""))
    keys = [("default", f"gpt{number}") for number in range(12)]
    for key in keys:
        line.coordinators.follow(key, NOBODY)
    has_asked = line.coordinators.has_asked
    await until("all answers", lambda: all(has_asked(key, NOBODY) for key in keys), 60)
    assert all(line.coordinators.view(key, 1, ()).status for key in keys)


async def test_a_large_answer_that_does_not_end_puts_off_others_of_its_namespace_alone(
    line: Line,
) -> None:
    answer = large_answer(500, "x" * 800)
    half = 2 * len(answer) // 3
    assert half > LARGE_BYTES
    with LargeAnswer(answer, half) as slow, LargeAnswer(answer) as near, LargeAnswer(answer) as far:
        line.coordinators.follow(("a", "slow"), Target("uid", slow.address, 1, "secret"))
        await until("a turn that is taken", lambda: is_reading(line, "a"), 60)
        line.coordinators.follow(("a", "near"), Target("uid", near.address, 1, "secret"))
        line.coordinators.follow(("b", "far"), Target("uid", far.address, 1, "secret"))
        await until("the other", lambda: line.coordinators.view(("b", "far"), 1, ()).status, 60)
        await until(
            "a put off", lambda: "put off" in line.coordinators.view(("a", "near"), 1, ()).error, 60
        )
        assert line.coordinators.view(("a", "near"), 1, ()).unanswered_seconds == 0.0
        slow.rest.set()
        await until("its turn", lambda: line.coordinators.view(("a", "near"), 1, ()).status, 60)


def is_reading(line: Line, namespace: str) -> bool:
    turn = line.coordinators._turns.get(namespace)
    return turn is not None and turn.locked()


@pytest.mark.parametrize("has_watch", [True, False])
async def test_a_number_of_400_digits_is_refused_and_the_coordinator_is_followed_on(
    line: Line, has_watch: bool
) -> None:
    with CoordinatorStub(make_coordinator_status()) as stub:
        stub.has_watch = has_watch
        ordinary = stub.encode
        number = f',"x":{10**400}}}'
        stub.encode = lambda status: ordinary(status)[:-1] + number  # type: ignore[method-assign]
        line.coordinators.follow(KEY, target(stub))
        await until("a refusal", lambda: ".x: must lie between" in view_of(line).error)
        stub.encode = ordinary  # type: ignore[method-assign]
        stub.end_watches()
        await until("an answer", lambda: view_of(line).status and not view_of(line).failures)


@pytest.mark.parametrize("error", [OverflowError("too large"), RecursionError(), KeyError("x")])
async def test_an_error_that_nothing_expects_is_shown_and_the_coordinator_is_followed_on(
    line: Line,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: object) -> NoReturn:
        raise error

    counted = internal_errors._value.get()
    monkeypatch.setattr(coordination, "COSTLY_PAUSE_SECONDS", 0.01)
    with CoordinatorStub(make_coordinator_status()) as stub:
        with monkeypatch.context() as patched:
            patched.setattr(coordination, "read_answer", fails)
            line.coordinators.follow(KEY, target(stub))
            await until("three of them", lambda: view_of(line).failures >= UNREADABLE_ANSWERS)
        assert type(error).__name__ in view_of(line).error
        assert view_of(line).unanswered_seconds == 0.0, "it is no evidence of death"
        assert internal_errors._value.get() >= counted + UNREADABLE_ANSWERS
        assert "default/gpt: cannot follow its coordinator" in caplog.text
        await until("an answer", lambda: view_of(line).status and not view_of(line).failures)


async def test_an_error_in_the_survey_of_agents_ends_it_for_a_moment_only(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> NoReturn:
        raise ZeroDivisionError

    counted = internal_errors._value.get()
    monkeypatch.setattr(coordination, "COSTLY_PAUSE_SECONDS", 0.01)
    unanswered = CoordinatorContact(term=1, unanswered_seconds=60.0)
    nobody = Target("uid", "127.0.83.1", 1, "secret")
    with AgentStub(unanswered) as agent:
        with monkeypatch.context() as patched:
            patched.setattr(coordination, "is_evidence", fails)
            line.coordinators.follow(KEY, nobody, [Agent("a", agent.address)])
            await until("it", lambda: internal_errors._value.get() > counted)
        assert view_of(line).unanswered_seconds > 0.0
        news = len(line.news)
        await line.until(news + 2)


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
        error = line.coordinators.view(KEY, 1, ()).error
        assert "protocol 9: this release speaks protocols 1, 2" in error
        assert error.endswith("suspend and resume the job"), "and nothing else"


def make_desired() -> Desired:
    return Desired(
        revision=3, namespace="default", job="gpt", replicas=1, min_replicas=1, max_replicas=1,
        train=TrainConfig(), directory="/x",
    )  # fmt: skip


async def test_the_coordinator_gets_what_the_spec_asks_for(line: Line) -> None:
    with CoordinatorStub(make_coordinator_status()) as stub:
        await line.coordinators.put_desired(target(stub), make_desired())
        assert stub.desired == [make_desired()]


async def test_a_replica_that_may_not_write_asks_coordinators_and_changes_nothing() -> None:
    def refuse() -> NoReturn:
        raise RuntimeError

    with CoordinatorStub(make_coordinator_status()) as stub:
        async with open_session(refuse) as session:
            coordinators = Coordinators(session, lambda _key: None, refuse)
            coordinators.follow(KEY, target(stub))
            await until("an answer", lambda: coordinators.has_asked(KEY, target(stub)))
            with pytest.raises(RuntimeError):
                await coordinators.put_desired(target(stub), make_desired())
            with pytest.raises(RuntimeError):
                await coordinators.post_lost(target(stub), Lost(members=("m",), reason="gone"))
            coordinators.close()
    assert (stub.desired, stub.lost) == ([], [])


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
