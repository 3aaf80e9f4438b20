"""What an agent sends, and when: one message for all its ranks, nothing lost, nothing reordered."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pytest
from pydantic import BaseModel, ValidationError

from regroup_trainer.agent.outbox import GATHER_SECONDS, MOST_MESSAGES, REPORTS_BYTES, Outbox
from regroup_trainer.protocol.agent_messages import (
    MOST_REPORTS,
    Leaving,
    RankEvent,
    RankExit,
    Reports,
    Stack,
    agent_message,
)
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.message import FRAME_BYTES
from regroup_trainer.protocol.rank_messages import (
    Finished,
    Parked,
    Progress,
    Restored,
    Retained,
)

NUMBER = GenerationNumber(1, 1)
RANKS = 8
LEAVING = Leaving(reason="SIGTERM")


def progress(rank: int, step: int = 1) -> Progress:
    return Progress(generation=NUMBER, rank=rank, step=step, time=1.0, compute_seconds=0.25)


def restored(rank: int) -> Restored:
    return Restored(generation=NUMBER, rank=rank, step=0)


def parked(rank: int) -> Parked:
    return Parked(generation=NUMBER, rank=rank, retained=Retained(step=3, shards=8, shard=rank))


def finished(rank: int) -> Finished:
    return Finished(generation=NUMBER, rank=rank, step=3, reason="leave")


def failed(rank: int) -> RankExit:
    return RankExit(generation=NUMBER, rank=rank, exit_code=1, cause="error", message="x")


def reports_of(message: BaseModel | None) -> tuple[RankEvent, ...]:
    assert isinstance(message, Reports)
    return message.reports


def drained(outbox: Outbox, now: float) -> list[BaseModel]:
    taken = []
    while (message := outbox.take(now)) is not None:
        taken.append(message)
    return taken


@pytest.mark.parametrize("make", [restored, parked, finished])
def test_what_all_ranks_report_is_one_message_as_soon_as_all_have(
    make: Callable[[int], RankEvent],
) -> None:
    outbox = Outbox(RANKS)
    for rank in range(RANKS - 1):
        outbox.add(make(rank), 0.0)
    assert outbox.take(0.0) is None
    assert outbox.pause(0.0) == GATHER_SECONDS
    outbox.add(make(RANKS - 1), 0.0)
    assert reports_of(outbox.take(0.0)) == tuple(make(rank) for rank in range(RANKS))
    assert outbox.pause(0.0) is None


def test_a_rank_that_reports_late_delays_the_others_for_a_moment_only() -> None:
    outbox = Outbox(RANKS)
    outbox.add(parked(3), 10.0)
    outbox.add(parked(4), 10.0 + GATHER_SECONDS / 2)
    assert len(reports_of(outbox.take(10.0 + GATHER_SECONDS))) == 2


def test_the_failure_of_a_rank_is_sent_at_once_with_what_waits() -> None:
    outbox = Outbox(RANKS)
    outbox.add(parked(3), 0.0)
    outbox.add(failed(4), 0.0)
    assert reports_of(outbox.take(0.0)) == (parked(3), failed(4))


def test_the_only_rank_of_an_agent_waits_for_nobody() -> None:
    outbox = Outbox(1)
    for report in (restored(0), progress(0)):
        outbox.add(report, 0.0)
        assert reports_of(outbox.take(0.0)) == (report,)


def test_progress_is_one_message_a_second_with_the_newest_of_each_rank() -> None:
    outbox, sent = Outbox(RANKS), []
    for tick in range(300):
        now = tick / 50
        if tick % 25 == 0:
            for rank in range(RANKS):
                outbox.add(progress(rank, tick), now)
        sent += [(now, message) for message in drained(outbox, now)]
    assert [now for now, _ in sent] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    for now, message in sent:
        expected = round(now * 50)
        assert reports_of(message) == tuple(progress(rank, expected) for rank in range(RANKS))


@pytest.mark.parametrize(
    ("agents", "first", "pause"),
    [(128, 1, 1.0), (1024, 0, 1.0), (1024, 1, 8.0), (4096, 1, 10.0)],
)
def test_in_a_large_generation_others_than_rank_0_say_more_seldom_how_far_they_are(
    agents: int, first: int, pause: float
) -> None:
    outbox, sent = Outbox(1), []
    outbox.begin(agents)
    for now in range(41):
        outbox.add(progress(first, now), float(now))
        sent += [now for _ in drained(outbox, float(now))]
    assert sent == list(range(0, 41, int(pause)))


def test_of_progress_that_cannot_be_sent_only_the_newest_is_kept() -> None:
    outbox = Outbox(2)
    for step in range(10 * MOST_MESSAGES):
        outbox.add(progress(step % 2, step), step / 2)
    (message,) = drained(outbox, 10.0 * MOST_MESSAGES)
    newest = 10 * MOST_MESSAGES - 1
    assert reports_of(message) == (progress(0, newest - 1), progress(1, newest))


def test_a_report_comes_after_the_progress_of_its_rank() -> None:
    outbox = Outbox(1)
    outbox.add(progress(0, 1), 0.0)
    outbox.take(0.0)
    outbox.add(progress(0, 2), 0.1)
    assert outbox.take(0.1) is None
    outbox.add(parked(0), 0.2)
    assert reports_of(outbox.take(0.2)) == (progress(0, 2), parked(0))
    assert outbox.pause(0.2) is None


def test_the_first_progress_of_a_generation_is_sent_at_once() -> None:
    outbox = Outbox(1)
    outbox.add(progress(0, 1), 0.0)
    outbox.take(0.0)
    outbox.begin(1)
    outbox.add(progress(0, 2), 0.1)
    assert reports_of(outbox.take(0.1)) == (progress(0, 2),)


def test_a_new_generation_drops_reports_and_keeps_the_request_to_leave() -> None:
    outbox = Outbox(1)
    for message in (finished(0), LEAVING, progress(0)):
        outbox.add(message, 0.0)
    outbox.begin(1)
    assert drained(outbox, 10.0) == [LEAVING]
    assert outbox.pause(10.0) is None


@pytest.mark.parametrize("waiting", [MOST_MESSAGES - 1, MOST_MESSAGES])
def test_where_too_many_wait_the_oldest_of_what_could_not_be_sent_is_dropped(waiting: int) -> None:
    outbox = Outbox(2)
    for rank in range(2):
        outbox.add(parked(rank), 0.0)
    sent = outbox.take(0.0)
    assert sent is not None
    for _ in range(waiting - 1):
        outbox.add(restored(0), 1.0)
    outbox.add(failed(0), 1.0)
    outbox.give_back(sent)
    reports = [report for message in drained(outbox, 2.0) for report in reports_of(message)]
    assert len(reports) == MOST_MESSAGES
    assert reports[-1] == failed(0)
    assert reports[0] == (restored(0) if waiting == MOST_MESSAGES else parked(1))


def test_a_message_that_could_not_be_sent_comes_first() -> None:
    outbox = Outbox(2)
    outbox.add(parked(0), 0.0)
    outbox.add(parked(1), 0.0)
    outbox.add(LEAVING, 0.0)
    message = outbox.take(0.0)
    assert message is not None
    outbox.give_back(message)
    assert drained(outbox, 0.0) == [message, LEAVING]


def test_a_message_is_bounded_whatever_ranks_report() -> None:
    outbox = Outbox(RANKS)
    for n in range(40):
        outbox.add(Stack(generation=NUMBER, rank=n % RANKS, text="\\" * 16384), 0.0)
    for n in range(3 * MOST_REPORTS):
        outbox.add(parked(n), 0.0)
    sizes = [len(message.model_dump_json()) for message in drained(outbox, 0.0)]
    assert max(sizes) < REPORTS_BYTES + 6 * 16384 + 1024 < FRAME_BYTES
    assert len(sizes) < 40


def test_of_other_ranks_than_the_first_only_step_and_pace_are_sent() -> None:
    """Nothing else of theirs is read."""
    fields = {"seconds": {"step": 1.5}, "epoch": 0.5, "tokens": 7, "report_seconds": 2.0}
    full = [progress(rank).model_copy(update=fields) for rank in range(2)]
    outbox = Outbox(2)
    for report in full:
        outbox.add(report, 0.0)
    brief = progress(1).model_copy(update={"report_seconds": 2.0})
    assert reports_of(outbox.take(0.0)) == (full[0], brief)


def test_reports_that_no_agent_makes_are_refused() -> None:
    report = json.loads(restored(0).model_dump_json())
    text = json.dumps({"kind": "reports", "reports": [report] * (MOST_REPORTS + 1)})
    with pytest.raises(ValidationError, match="at most 512"):
        agent_message.validate_json(text)


def test_reports_arrive_as_they_were_sent_and_are_small() -> None:
    reports = tuple(progress(rank, 123456) for rank in range(RANKS))
    for message in (
        Reports(reports=reports),
        Reports(reports=(restored(1), failed(2), parked(3), finished(4))),
    ):
        assert agent_message.validate_json(message.model_dump_json()) == message
    assert len(Reports(reports=reports).model_dump_json()) < 120 * RANKS


def make_any(random: Random, step: int) -> BaseModel:
    """A message of any kind, unlike all others."""
    rank = random.randrange(4)
    end = failed(rank).model_copy(update={"message": str(step)})
    kept = Retained(step=step)
    park = Parked(generation=NUMBER, rank=rank, retained=kept)
    return random.choice([progress(rank, step), park, end, Leaving(reason=str(step))])


@pytest.mark.parametrize("seed", range(20))
def test_nothing_but_older_progress_is_lost_and_each_rank_keeps_its_order(seed: int) -> None:
    random, outbox, now = Random(seed), Outbox(4), 0.0
    added: list[BaseModel] = []
    sent: list[BaseModel] = []

    def send(message: BaseModel) -> None:
        if random.random() < 0.3:
            outbox.give_back(message)
        else:
            sent.extend(message.reports if isinstance(message, Reports) else [message])

    for step in range(300):
        now += random.choice([0.0, 0.001, 0.1, 1.5])
        added.append(make_any(random, step))
        outbox.add(added[-1], now)
        if (message := outbox.take(now)) is not None:
            send(message)
    while (message := outbox.take(now + 10.0)) is not None:
        send(message)
    for rank in (0, 1, 2, 3, None):
        put = [message for message in added if getattr(message, "rank", None) == rank]
        out = [message for message in sent if getattr(message, "rank", None) == rank]
        assert [m for m in out if not isinstance(m, Progress)] == [
            m for m in put if not isinstance(m, Progress)
        ]
        assert out == [message for message in put if message in out]
        assert out[-1] == put[-1]
    assert len(sent) < len(added)
