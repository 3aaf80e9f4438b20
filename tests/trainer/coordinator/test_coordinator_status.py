"""The lines of a watch: what leads to one, how often, and what one holds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.coordinator_status import (
    MORE_IN_CONTACT,
    NEWS_SECONDS,
    PROGRESS_SECONDS,
    SHOWN_SECONDS,
    ShownStatus,
    ShownSteps,
    StatusLines,
    agents_in_contact,
)
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import (
    ASK_LINE,
    WATCH_LINE_BYTES,
    CoordinatorStatus,
    MemberStatus,
    Straggler,
    WorkerSteps,
)
from regroup_trainer.protocol.ledger import Ledger
from regroup_trainer.protocol.rank_messages import Progress
from tests.support.large_job import LargeJob, uid

EVERY = 1.0


def status(**changes: Any) -> CoordinatorStatus:
    """Of a job that trains."""
    progress = Progress(generation=GenerationNumber(1, 1), rank=0, step=7, time=0.0)
    given = {"term": 1, "sequence": 1, "revision": 1, "phase": "running", "message": "training"}
    return CoordinatorStatus(**{**given, "progress": progress, "agents_in_contact": (), **changes})


def member(**changes: Any) -> MemberStatus:
    given = {"member": "uid-0", "index": 0, "pod": "gpt-w0-1", "node": "n", "rank": 0, "step": 0}
    return MemberStatus(**{**given, **changes})


def next_line(lines: StatusLines, status: CoordinatorStatus, now: float) -> bytes | None:
    return lines.next_line((status.essence(), status.agents_in_contact), lambda: status, now)


def begun(first: CoordinatorStatus | None = None) -> StatusLines:
    """The lines after the first one, which was sent at 0."""
    lines, shown = StatusLines(EVERY, random.random), first or status()
    assert next_line(lines, shown, 0.0) == shown.model_dump_json().encode()
    return lines


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "recovering"},
        {"revision": 2},
        {"members": (member(),)},
        {"world_size": 2},
        {"agents_in_contact": ("uid-1",)},
        {"progress": None},
        {"stragglers": (Straggler(rank=0, member="m", pod="p", node="n", percent=40),)},
    ],
)
def test_a_change_of_the_essence_is_sent_whole(change: dict[str, Any]) -> None:
    changed = status(**change)
    line = next_line(begun(), changed, NEWS_SECONDS)
    assert line is not None
    assert CoordinatorStatus.parse(line.decode()) == changed


@pytest.mark.parametrize(
    "change",
    [
        {"sequence": 2},
        {"message": "training: step 8"},
        {"ledger": Ledger(lost_steps=1)},
        {"progress": status().progress.model_copy(update={"step": 8})},  # type: ignore[union-attr]
    ],
)
def test_what_each_step_changes_is_sent_twice_a_minute(change: dict[str, Any]) -> None:
    lines, sent = begun(), []
    for tick in range(600):
        line = next_line(lines, status(**change), tick / 10)
        if line:
            sent.append(tick / 10)
    least, longest = PROGRESS_SECONDS
    assert least <= sent[0] <= longest + 0.1
    assert len(sent) in (1, 2)


def test_a_step_of_a_member_is_no_change_and_its_loss_is_one() -> None:
    lines = begun(status(members=(member(),)))
    assert next_line(lines, status(members=(member(step=9),)), 0.6) is None
    assert next_line(lines, status(members=(member(lost="no contact"),)), 0.6)


def test_a_status_that_changes_all_the_time_is_sent_twice_a_second() -> None:
    lines = begun()
    sent = [t for t in range(1, 101) if next_line(lines, status(revision=t), t / 10)]
    assert sent == list(range(5, 101, 5))


def test_an_empty_line_says_that_nothing_has_changed() -> None:
    lines = begun()
    assert next_line(lines, status(), EVERY - 0.1) is None
    assert next_line(lines, status(), EVERY) == b""
    assert next_line(lines, status(), EVERY + 0.1) is None
    assert next_line(lines, status(revision=2), EVERY + 0.2)


def test_no_empty_line_hides_a_change() -> None:
    lines = StatusLines(0.1, random.random)
    next_line(lines, status(), 0.0)
    assert next_line(lines, status(revision=2), NEWS_SECONDS - 0.1) is None
    assert next_line(lines, status(revision=2), NEWS_SECONDS)


def test_of_a_status_that_fits_no_line_it_is_reported_that_it_changed() -> None:
    members = tuple(member(member=f"uid-{n}", lost="x" * 100) for n in range(500))
    lines = StatusLines(EVERY, random.random)
    assert len(status(members=members).model_dump_json()) >= WATCH_LINE_BYTES
    assert next_line(lines, status(members=members), 0.0) == ASK_LINE
    assert next_line(lines, status(members=members), EVERY) == b""
    assert next_line(lines, status(members=members, revision=2), EVERY) == ASK_LINE


def test_the_pauses_say_when_a_line_may_come_and_when_one_must() -> None:
    lines = begun()
    assert lines.pauses(0.2) == pytest.approx((0.3, 0.8))
    assert lines.pauses(5.0) == (0.0, 0.0)


def large_state(workers: int) -> State:
    """Of a coordinator to which so many agents are connected."""
    job = LargeJob(workers)
    for number in range(workers):
        job.hello(number)
    return job.core.state


def test_a_large_status_is_shown_again_for_a_while_until_there_is_news() -> None:
    workers, news = 500, object()
    shown, while_shown = ShownStatus(large_state(workers)), 0.9 * SHOWN_SECONDS * workers
    first = shown.at(0.0, 1, news)
    assert len(first.members) == workers
    assert shown.at(while_shown, 2, news) is first
    assert shown.at(while_shown, 2, object()).sequence == 2, "news"
    assert shown.at(2 * while_shown, 3, news).sequence == 3
    assert shown.at(4 * while_shown, 4, news).sequence == 4, "it is old"


def test_who_has_seen_a_status_gets_a_later_one() -> None:
    shown, news = ShownStatus(large_state(500)), object()
    assert shown.at(0.0, 1, news).sequence == 1
    assert shown.at(0.0, 2, news, after=1).sequence == 2


def test_the_steps_of_many_workers_are_shown_again_for_as_long_as_a_status() -> None:
    workers = 500
    job = LargeJob(workers)
    for number in range(workers):
        job.hello(number)
    shown, until = ShownSteps(job.core.state), SHOWN_SECONDS * workers
    first = shown.text(0.0)
    assert {worker.step for worker in WorkerSteps.model_validate_json(first).workers} == {0}
    for number, report in job.restored():
        job.send(number, report)
    for send in job.progress():
        send()
    assert shown.text(0.9 * until) is first
    assert {w.step for w in WorkerSteps.model_validate_json(shown.text(until)).workers} == {1}


def importing_torch(workers: int, pods: int = 1) -> LargeJob:
    """A job whose workers start, and had so many pods each within a moment."""
    job = LargeJob(workers)
    for number in range(workers):
        for pod in range(pods):
            job.core.on_importing(number, f"{uid(number)}-{pod}", job.now)
    return job


@pytest.mark.parametrize("workers", [1, 1024, 1025, 4096])
def test_all_workers_of_a_job_that_starts_are_named(workers: int) -> None:
    job = importing_torch(workers)
    named = agents_in_contact(job.core.state, job.now)
    assert named is not None
    assert sorted(named) == sorted(f"{uid(number)}-0" for number in range(workers))


def test_more_agents_than_a_job_can_have_are_not_named() -> None:
    job = importing_torch(MORE_IN_CONTACT, pods=2)
    assert agents_in_contact(job.core.state, job.now) is not None
    job.core.on_importing(0, "one more", job.now)
    assert agents_in_contact(job.core.state, job.now) is None
