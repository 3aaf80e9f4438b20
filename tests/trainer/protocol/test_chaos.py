"""Chaos: random faults never lead to a wrong commit, and training goes on once they stop."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.protocol import record_transfer
from tests.support.chaos import Job, Pod
from tests.support.chaos_ranks import Volume
from tests.support.chaos_wire import WireJob
from tests.support.coordinator_simulation import make_desired

WORKERS = 4
EVENTS = 40
PAUSES = (0.1, 0.5, 1.5, 4.0)


def heal_all(job: Job, _pod: Pod) -> None:
    for pod in job.living:
        pod.heal()


def lose_all_but(job: Job, survivor: Pod) -> None:
    """A rack loses its power, and with it the coordinator's node."""
    for pod in job.living:
        if pod is not survivor:
            job.kill(pod, closing=False)
    survivor.heal()
    job.end(job.coordinator, closing=False)
    job.start_coordinator(next_term=True)
    replace_lost(job)


def replace_coordinator(job: Job) -> None:
    """The former coordinator ends, with or without closing its connections, or goes on."""
    old, ends = job.coordinator, job.random.randint(0, 2)
    job.start_coordinator(next_term=True)
    if ends < 2:
        job.end(old, closing=bool(ends))


def replace_lost(job: Job) -> None:
    """The operator makes the workers that are missing. To it a frozen one is missing, too."""
    for index in range(job.desired.workers):
        if not any(pod.index == index and pod.runs for pod in job.pods):
            job.add(index)


FAULTS: tuple[Callable[[Job, Pod], object], ...] = (
    lambda job, pod: job.kill(pod, closing=True),
    lambda job, pod: job.kill(pod, closing=False),
    lambda job, pod: job.freeze(pod),
    lambda job, pod: job.cut_inbound(pod),
    lambda job, pod: job.cut_outbound(pod),
    lambda job, pod: job.part(pod, job.random.choice(job.pods)),
    lambda job, pod: job.cut_off(pod),
    lambda _, pod: pod.heal(),
    heal_all,
    lambda job, pod: job.end_rank(pod),
    lambda job, pod: job.report_lost(pod),
    lambda job, pod: job.ask_to_leave(pod),
    lambda job, _: job.update_desired(replicas=job.random.randint(2, WORKERS)),
    lose_all_but,
    lambda job, _: replace_coordinator(job),
    *[lambda job, _: replace_lost(job)] * 4,
)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_nothing_wrong_is_committed_and_training_goes_on(seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        play(Random(seed), Volume(Layout(Path(directory))))


@pytest.mark.long
@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_so_it_is_with_the_messages_that_are_sent_in_place_of_records(seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_transfer, "PIECE_CHARACTERS", 500)  # so that there are several
        play(Random(seed), Volume(Layout(Path(directory))), WireJob)


@pytest.mark.parametrize("seed", range(3))
def test_a_single_survivor_on_a_busy_machine_makes_no_step_twice(tmp_path: Path, seed: int) -> None:
    """One of two nodes loses its power, again and again, and the other rank gets no core for
    seconds. When it was killed after one, its steps since the last save were made again.
    """
    random = Random(seed)
    desired = make_desired(replicas=2, min_replicas=1, max_replicas=2, steps=10**6)
    job = ReplicatedJob(random, desired, Volume(Layout(tmp_path)), early=seed % 2 == 0)
    for _ in range(10):
        await_both(job)
        job.live(random.uniform(0.0, 3.0))
        lost, survivor = random.sample(job.living, 2)
        rank, before = survivor.rank, max(job.begun)
        assert rank is not None
        assert rank.state is not None
        step = rank.state.step
        job.kill(lost, closing=False)
        survivor.starved_until = job.now + random.uniform(2.0, 7.0)
        until = job.now + 60.0
        while max(job.resumed) <= before:
            assert job.now < until
            job.live(0.5)
        assert job.resumed[max(job.resumed)].step >= step
        replace_lost(job)


class ReplicatedJob(Job):
    """A job of which each rank holds the whole state."""

    def _use_checkpoints(self) -> None:
        pass


def await_both(job: Job) -> None:
    """Return when two ranks train in one generation that has made some steps."""
    until = job.now + 120.0
    while True:
        newest = max(job.resumed, default=None)
        whole = newest is not None and job.begun[newest].world_size == 2
        if whole and newest in job.commits and job.commits[newest].step > job.resumed[newest].step:
            return
        assert job.now < until
        job.live(0.5)


def play(random: Random, volume: Volume, make_job: type[Job] = Job) -> None:
    """Cause faults for a while, then none."""
    unlimited = {"max_restarts": -1, "max_hang_restarts": -1, "max_backoff_seconds": 2.0}
    desired = make_desired(replicas=3, steps=10**6, **unlimited)
    job = make_job(random, desired, volume, early=random.random() < 0.5)
    for _ in range(EVENTS):
        job.live(random.choice(PAUSES))
        pod = random.choice(job.living) if job.living else job.add(0)
        random.choice(FAULTS)(job, pod)
    job.heal()
    job.live(5.0)
    replace_lost(job)
    job.live(60.0)
    before = job.committed.step
    job.live(10.0)
    assert job.committed.step > before, job.coordinator.core.state.waiting
