"""The jobs that the clients of a hostile tenant draw together."""

from __future__ import annotations

import json
from itertools import count

from bench.fuzz.hostile_client import DrawnJobs
from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS

WORKERS = 40
SIZES = ("replicas", "spares")


def make_jobs(seed: int = 1) -> DrawnJobs:
    return DrawnJobs(seed, WORKERS)


def drawn(jobs: DrawnJobs) -> tuple[str, str]:
    one = jobs.draw()
    assert one is not None
    return one


def test_as_many_are_drawn_as_are_to_be_taken_though_several_are_on_their_way() -> None:
    jobs = make_jobs()
    assert jobs.is_complete()
    assert jobs.draw() is None
    jobs.want(2)
    first, second = drawn(jobs), drawn(jobs)
    assert jobs.draw() is None
    assert not jobs.is_complete()
    jobs.note("job-1", 201)
    jobs.note("job-2", 422)  # another one takes its place
    third = drawn(jobs)
    assert jobs.draw() is None
    jobs.note("job-3", 201)
    assert jobs.is_complete()
    assert (jobs.taken, jobs.refused) == (["job-1", "job-3"], 1)
    assert [name for name, _ in (first, second, third)] == ["job-1", "job-2", "job-3"]


def test_one_whose_answer_is_lost_counts_neither_as_taken_nor_as_refused() -> None:
    jobs = make_jobs()
    jobs.want(1)
    drawn(jobs)
    jobs.note("job-1", None)
    assert (jobs.taken, jobs.refused) == ([], 0)
    assert not jobs.is_complete()
    assert drawn(jobs)[0] == "job-2"


def test_equal_seeds_draw_equal_jobs_in_whatever_order_answers_come() -> None:
    def specs(answer_late: bool) -> list[str]:
        jobs = make_jobs(seed=7)
        jobs.want(9)
        found: list[str] = []
        for number in count():
            if (one := jobs.draw()) is None:
                break
            found.append(one[1])
            if not answer_late:
                jobs.note(one[0], 422 if number % 2 else 201)
            if len(found) == 9:
                break
        return found

    assert specs(answer_late=True) == specs(answer_late=False)


def test_each_wave_begins_with_few_that_are_as_large_as_can_be() -> None:
    jobs = make_jobs()
    for _ in range(2):
        jobs.want(100)
        specs = [drawn(jobs)[1] for _ in range(9)]
        workers = [sum(json.loads(spec).get(name, 0) for name in SIZES) for spec in specs[:2]]
        assert all(count in (WORKERS - 1, WORKERS, DEFAULT_MAX_WORKERS + 1) for count in workers)
        large, larger, too_large, *others = map(len, specs[2:])
        assert min(large, larger) > 5_000
        assert 1_000_000 < too_large < 1_500_000
        assert max(others) < 1_000_000


def test_what_else_is_drawn_is_the_same_whatever_is_largest() -> None:
    def others(workers: int) -> list[str]:
        jobs = DrawnJobs(3, workers)
        jobs.want(9)
        return [drawn(jobs)[1] for _ in range(9)][5:]

    assert others(20) == others(4096)
