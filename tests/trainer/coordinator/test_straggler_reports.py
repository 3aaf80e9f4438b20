"""Who computes slower than the others, in virtual time."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_trainer.coordinator.coordinator_metrics import make_registry
from regroup_trainer.coordinator.coordinator_status import make_status
from regroup_trainer.coordinator.pace import HOLD_SECONDS, LEAST_REPORTS, Pace
from regroup_trainer.protocol.rank_messages import Progress
from tests.support.coordinator_simulation import Job, SimulatedAgent, make_desired

LIMIT = 0.3


def paced(pace: Pace, seconds: list[float], *, since: float = 0.0, until: float = 30.0) -> Pace:
    """Each rank reports the same time, once a second."""
    for now in range(round(since), round(until)):
        for rank, own in enumerate(seconds):
            pace.note(rank, own)
        pace.check(float(now), LIMIT)
    return pace


@pytest.mark.parametrize("seconds", [[1.0, 1.5], [1.0, 1.0, 1.5], [1.1, 1.0, 0.9, 1.5]])
def test_the_slow_rank_is_found_among_any_number_of_ranks(seconds: list[float]) -> None:
    assert list(paced(Pace(len(seconds)), seconds).stragglers) == [len(seconds) - 1]


def test_it_says_how_much_slower() -> None:
    assert paced(Pace(3), [1.0, 1.8, 1.0]).stragglers == {1: 80}


def test_slow_for_a_moment_is_no_straggler() -> None:
    pace = paced(Pace(3), [1.0, 1.0, 1.0], until=30)
    paced(pace, [1.0, 9.0, 1.0], since=30, until=30 + HOLD_SECONDS)
    paced(pace, [1.0, 1.0, 1.0], since=40, until=60)
    assert pace.stragglers == {}


def test_a_straggler_that_recovers_is_none_any_more() -> None:
    pace = paced(Pace(3), [1.0, 2.0, 1.0])
    assert pace.stragglers
    paced(pace, [1.0, 1.0, 1.0], since=30, until=60)
    assert pace.stragglers == {}


def test_one_at_the_border_does_not_come_and_go() -> None:
    pace = paced(Pace(3), [1.0, 1.35, 1.0])
    paced(pace, [1.0, 1.25, 1.0], since=30, until=90)
    assert pace.stragglers == {1: 35}


def test_no_rank_is_judged_before_all_have_reported_enough() -> None:
    pace = Pace(2)
    for now in range(100):
        pace.note(0, 9.0)
        if now < LEAST_REPORTS - 1:
            pace.note(1, 1.0)
        assert pace.check(float(now), LIMIT) == []


def test_ranks_that_do_not_measure_are_not_judged() -> None:
    assert paced(Pace(2), [0.0, 5.0]).stragglers == {}


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=9))
def test_most_ranks_are_never_stragglers(seconds: list[float]) -> None:
    found = paced(Pace(len(seconds)), seconds).stragglers
    assert len(found) <= len(seconds) / 2
    assert all(seconds[rank] > statistics.median_low(seconds) for rank in found)


# --- the whole job --------------------------------------------------------------------------------


def train(
    slow: float, seconds: float = 20.0, workers: int = 3, stragglers: range = range(1, 2)
) -> tuple[Job, list[SimulatedAgent]]:
    """A job of which some ranks compute `slow` times as long as the others."""
    sizes = {"replicas": workers, "max_replicas": workers}
    job = Job(make_desired(steps=10_000, straggler_percent=50, **sizes))
    agents = [job.add_agent(index) for index in range(workers)]
    job.pace |= dict.fromkeys(stragglers, slow)
    job.wait(seconds)
    return job, agents


def events(job: Job) -> list[str]:
    return [
        event.message
        for event in job.core.state.journal.events()
        if event.reason == "StragglerDetected"
    ]


def test_a_straggler_is_one_event_with_its_place() -> None:
    job, _ = train(slow=2.0)
    place = job.record.members[1]
    assert events(job) == [
        f"rank 1 on {place.pod} ({place.node}) computes 100 % longer than the median rank"
    ]
    (report_by_rank,) = make_status(job.core.state, 1).stragglers
    assert (report_by_rank.rank, report_by_rank.member, report_by_rank.percent) == (
        1,
        place.member,
        100,
    )


@pytest.mark.parametrize(("stragglers", "count"), [(range(1, 4), 3), (range(1, 6), 1)])
def test_many_stragglers_at_once_are_one_event(stragglers: range, count: int) -> None:
    job, _ = train(slow=2.0, workers=12, stragglers=stragglers)
    assert len(events(job)) == count
    assert len(make_status(job.core.state, 1).stragglers) == len(stragglers)


def test_the_event_of_many_stragglers_names_a_few_workers_and_the_slowest_rank() -> None:
    job, _ = train(slow=2.0, seconds=0.0, workers=12, stragglers=range(1, 6))
    job.pace[4] = 3.0
    job.wait(20.0)
    first = ", ".join(job.record.members[rank].pod for rank in range(1, 4))
    slowest = job.record.members[4]
    (message,) = events(job)
    assert message == (
        f"5 ranks are stragglers, on {first} and 2 more; the slowest: rank 4 on {slowest.pod} "
        f"({slowest.node}) computes 200 % longer than the median rank"
    )


def test_within_the_percentage_of_the_spec_nobody_is_a_straggler() -> None:
    job, _ = train(slow=1.4)
    assert events(job) == []
    assert make_status(job.core.state, 1).stragglers == ()


def test_a_pause_of_the_coordinator_makes_no_straggler() -> None:
    job, _ = train(slow=2.0, seconds=8.0)
    assert events(job) == []
    job.pause_coordinator(HOLD_SECONDS)
    assert events(job) == []
    job.wait(HOLD_SECONDS)
    assert len(events(job)) == 1


def test_a_new_generation_is_judged_anew() -> None:
    job, agents = train(slow=2.0)
    job.pace.clear()
    job.crash(agents[1])
    job.wait(30.0)
    assert make_status(job.core.state, 1).stragglers == ()


def test_the_slowest_rank_is_a_metric() -> None:
    job, _ = train(slow=1.25)
    registry = make_registry(job.core.state)
    labels = {"namespace": "default", "trainingjob": "gpt"}
    assert registry.get_sample_value("trainingjob_straggler_ratio", labels) == 1.25
    assert registry.get_sample_value("trainingjob_slowest_rank", labels) == 1


def test_a_report_of_another_generation_does_not_count() -> None:
    job, agents = train(slow=1.0)
    old = job.record.number
    job.crash(agents[0])
    job.wait(2.0)
    before = dict(job.core.state.current.pace.excess) if job.core.state.current else {}
    late = Progress(generation=old, rank=1, step=10_000, time=0.0, compute_seconds=1000.0)
    for _ in range(50):
        job.send(agents[1], late)
    job.wait(2.0)
    assert job.core.state.current is not None
    assert (
        max(job.core.state.current.pace.excess.values(), default=0.0)
        <= max(before.values(), default=0.0) + 1e-9
    )
