"""Clocks that differ: the operator's is ahead of, or behind, those of the API server and the nodes,
by half a minute or by hours. What is done, and when, is what is done under one clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from regroup_operator.decide.outcome import deadline_due
from regroup_operator.decide.plan import DeletePod
from regroup_operator.decide.succession import NAMED_SECONDS
from regroup_trainer.protocol.exit_codes import WAITS_IN_VAIN
from regroup_trainer.protocol.job_status import Outcome
from tests.support.operator_simulation import (
    Simulation,
    make_spec,
    make_torchrun_spec,
    names_of,
    training,
)

CLOCKS = (-3600.0, -30.0, 30.0, 3600.0)
"""Seconds that the operator's clock is ahead."""
Course = Callable[[Simulation], Iterator[None]]


def start(_job: Simulation) -> Iterator[None]:
    """Nothing else happens."""
    yield from [None] * 3


def fail_twice(job: Simulation) -> Iterator[None]:
    """A worker ends with an error, and so does the next one."""
    for _ in range(2):
        job.fail(job.workers()[0])
        yield from [None] * 8


def lose_a_node(job: Simulation) -> Iterator[None]:
    """It comes back when its worker has been replaced."""
    job.kill_node("n2")
    yield from [None] * 6
    job.start_node("n2")
    yield from [None] * 4


def end_well_before_the_coordinator_reports_it(job: Simulation) -> Iterator[None]:
    """Two rounds lie between the end of the first worker and the outcome."""
    succeed(job, job.workers()[0].name)
    yield from [None] * 2
    job.outcome = Outcome(result="completed", message="done")
    yield from [None] * 3


def end_well_too_soon(job: Simulation) -> Iterator[None]:
    """Nobody reports an outcome."""
    succeed(job, job.workers()[0].name)
    yield from [None] * 10


def delete_the_service(job: Simulation) -> Iterator[None]:
    """Workers lose the coordinator while there is none, and a moment longer."""
    job.service, job.address = None, "198.19.0.2"
    workers = job.workers()
    job.lost_since = {pod.uid: job.now for pod in workers}
    yield from [None] * 4
    job.lost_since.clear()
    yield from [None] * 2


def lose_the_coordinator(job: Simulation) -> Iterator[None]:
    job.lose_coordinator()
    yield from [None] * 8


def fail_beside_workers_that_ended_well(job: Simulation) -> Iterator[None]:
    """The store ends a moment later: a worker has waited in vain."""
    first, second, third = job.workers()
    succeed(job, first.name, second.name)
    job.fail(third)
    yield from [None] * 3
    store = next(pod for pod in job.pods.values() if pod.role == "store")
    job.fail(store, exit_code=WAITS_IN_VAIN)
    yield from [None] * 6


def succeed(job: Simulation, *names: str) -> None:
    for name in names:
        ended = replace(job.pods[name], phase="Succeeded", exit_code=0, ended=job.now.isoformat())
        job.pods[name] = ended


def done(course: Course, spec: dict[str, object], clock_ahead: float) -> list[tuple[str, ...]]:
    """The actions of each round of a course, two seconds apart, and the phase after it."""
    job, rounds = Simulation(spec=spec, clock_ahead=clock_ahead), []
    job.run_rounds(4)
    for _ in course(job):
        what = job.round()
        job.run_pods()
        job.tick(2)
        rounds.append((*map(str, what.actions), str(what.status.phase)))
    return rounds


@pytest.mark.parametrize("clock_ahead", CLOCKS)
@pytest.mark.parametrize(
    "course",
    [
        start,
        fail_twice,
        lose_a_node,
        end_well_before_the_coordinator_reports_it,
        end_well_too_soon,
        delete_the_service,
        lose_the_coordinator,
    ],
)
def test_what_is_done_and_when_does_not_depend_on_whose_clock_is_right(
    course: Course, clock_ahead: float
) -> None:
    assert done(course, make_spec(), clock_ahead) == done(course, make_spec(), 0.0)


@pytest.mark.parametrize("clock_ahead", CLOCKS)
def test_an_attempt_of_torchrun_is_judged_after_its_store_whatever_the_clocks_say(
    clock_ahead: float,
) -> None:
    course, spec = fail_beside_workers_that_ended_well, make_torchrun_spec()
    rounds = done(course, spec, clock_ahead)
    assert rounds == done(course, spec, 0.0)
    assert rounds[0][-1] == "Recovering"


# --- a clock that is set while the job runs, or another leader's ----------------------------------


def test_a_back_off_of_a_clock_that_was_ahead_is_not_waited_for() -> None:
    job = training()
    job.clock_ahead = 3600.0
    for _ in range(2):
        job.fail(job.workers()[0])
        job.run_rounds(3)
    job.fail(job.workers()[0])
    job.round()
    assert names_of(job) == ["gpt-w1-1", "gpt-w2-1"], "the third one waits"
    job.clock_ahead = 0.0
    job.round()
    assert names_of(job) == ["gpt-w0-4", "gpt-w1-1", "gpt-w2-1"]
    assert job.status.pod_failures == 3


@pytest.mark.parametrize("clock_ahead", CLOCKS)
def test_a_deadline_moves_by_no_more_than_the_clock_was_set(clock_ahead: float) -> None:
    job = Simulation(spec=make_spec(activeDeadlineSeconds=7200))
    job.run_rounds(4)
    before = deadline_due(job.job(), job.operator_time)
    job.clock_ahead = clock_ahead
    after = deadline_due(job.job(), job.operator_time)
    assert before is not None
    assert after == before - clock_ahead
    job.round()
    assert job.status.phase == "Running"


@pytest.mark.parametrize("clock_ahead", CLOCKS)
def test_an_ended_job_stays_for_its_time_give_or_take_what_the_clock_was_set(
    clock_ahead: float,
) -> None:
    job = Simulation(spec=make_spec(ttlSecondsAfterFinished=7200))
    job.run_rounds(4)
    job.outcome = Outcome(result="completed", message="done")
    job.run_rounds(8)
    job.clock_ahead = clock_ahead
    job.tick(7200 - clock_ahead - 60)
    job.round()
    assert not job.deleted
    job.tick(60)
    job.round()
    assert job.deleted


@pytest.mark.parametrize("clock_ahead", CLOCKS)
def test_a_pod_without_containers_is_named_about_in_time_and_never_touched(
    clock_ahead: float,
) -> None:
    job = Simulation(clock_ahead=clock_ahead)
    job.round()
    placed = job.now
    for pod in job.workers():
        job.pods[pod.name] = replace(pod, node="n1", placed=placed.isoformat())
    named: list[float] = []
    while not named and (job.now - placed).total_seconds() < 4000:
        what = job.round()
        assert not [action for action in what.actions if isinstance(action, DeletePod)]
        if what.waiting is not None and what.waiting.reason == "ContainerCreating":
            named.append((job.now - placed).total_seconds())
        job.tick(2 if clock_ahead > -60 else 60)
    assert abs(named[0] - NAMED_SECONDS) <= abs(clock_ahead) + 60
