"""Random faults on the whole protocol: nothing wrong is committed or resumed from, and it goes on once they stop."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings

from regroup_trainer.checkpoint.layout import Layout
from tests.trainer.coordinator.simulation import make_desired
from tests.trainer.protocol.fire import Job, Pod
from tests.trainer.protocol.ranks import Volume

WORKERS = 4
EVENTS = 40
PAUSES = (0.1, 0.5, 1.5, 4.0)


def mend_all(job: Job, _pod: Pod) -> None:
    for pod in job.living:
        pod.mend()


def lose_all_but(job: Job, survivor: Pod) -> None:
    """A rack loses its power, and the coordinator's node with it."""
    for pod in job.living:
        if pod is not survivor:
            job.kill(pod, closing=False)
    survivor.mend()
    job.end(job.leader, closing=False)
    job.lead(next_term=True)
    replace_lost(job)


def replace_leader(job: Job) -> None:
    """The former coordinator ends, with or without a word, or lives on for a while."""
    old, ends = job.leader, job.random.randint(0, 2)
    job.lead(next_term=True)
    if ends < 2:
        job.end(old, closing=bool(ends))


def replace_lost(job: Job) -> None:
    """The operator makes the workers that are missing, or only frozen, for all it knows."""
    for index in range(job.desired.workers):
        if not any(pod.index == index and pod.runs for pod in job.pods):
            job.add(index)


HAPPENINGS: tuple[Callable[[Job, Pod], object], ...] = (
    lambda job, pod: job.kill(pod, closing=True),
    lambda job, pod: job.kill(pod, closing=False),
    lambda job, pod: job.freeze(pod),
    lambda job, pod: job.make_deaf(pod),
    lambda job, pod: job.make_mute(pod),
    lambda job, pod: job.part(pod, job.random.choice(job.pods)),
    lambda job, pod: job.cut_off(pod),
    lambda _, pod: pod.mend(),
    mend_all,
    lambda job, pod: job.end_rank(pod),
    lambda job, pod: job.give_up(pod),
    lambda job, pod: job.ask_to_leave(pod),
    lambda job, _: job.wish(replicas=job.random.randint(2, WORKERS)),
    lose_all_but,
    lambda job, _: replace_leader(job),
    *[lambda job, _: replace_lost(job)] * 4,
)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_nothing_wrong_is_committed_and_it_goes_on(seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        play(Random(seed), Volume(Layout(Path(directory))))


def play(random: Random, volume: Volume) -> None:
    """Faults, then none."""
    unlimited = {"max_restarts": -1, "max_hang_restarts": -1, "max_backoff_seconds": 2.0}
    desired = make_desired(replicas=3, steps=10**6, **unlimited)
    job = Job(random, desired, volume, early=random.random() < 0.5)
    for _ in range(EVENTS):
        job.live(random.choice(PAUSES))
        pod = random.choice(job.living) if job.living else job.add(0)
        random.choice(HAPPENINGS)(job, pod)
    job.mend()
    job.live(5.0)
    replace_lost(job)
    job.live(60.0)
    before = job.line.step
    job.live(10.0)
    assert job.line.step > before, job.leader.core.state.waiting_for
