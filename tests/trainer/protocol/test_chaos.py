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


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_so_it_is_with_the_messages_that_are_sent_in_place_of_records(seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_transfer, "PIECE_CHARACTERS", 500)  # so that there are several
        play(Random(seed), Volume(Layout(Path(directory))), WireJob)


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
