"""The jobs that the clients of a hostile tenant draw together."""

from __future__ import annotations

from itertools import count

from bench.fuzz.hostile_client import DrawnJobs


def drawn(jobs: DrawnJobs) -> tuple[str, str]:
    one = jobs.draw()
    assert one is not None
    return one


def test_as_many_are_drawn_as_are_to_be_taken_though_several_are_on_their_way() -> None:
    jobs = DrawnJobs(seed=1)
    assert jobs.is_complete()
    assert jobs.draw() is None
    jobs.want(2)
    first, second = drawn(jobs), drawn(jobs)
    assert jobs.draw() is None
    assert not jobs.is_complete()
    jobs.note(201)
    jobs.note(422)  # another one takes its place
    third = drawn(jobs)
    assert jobs.draw() is None
    jobs.note(201)
    assert jobs.is_complete()
    assert (jobs.taken, jobs.refused) == (2, 1)
    assert [name for name, _ in (first, second, third)] == ["job-1", "job-2", "job-3"]


def test_one_whose_answer_is_lost_counts_neither_as_taken_nor_as_refused() -> None:
    jobs = DrawnJobs(seed=1)
    jobs.want(1)
    drawn(jobs)
    jobs.note(None)
    assert (jobs.taken, jobs.refused) == (0, 0)
    assert not jobs.is_complete()
    assert drawn(jobs)[0] == "job-2"


def test_equal_seeds_draw_equal_jobs_in_whatever_order_answers_come() -> None:
    def specs(answer_late: bool) -> list[str]:
        jobs = DrawnJobs(seed=7)
        jobs.want(4)
        found: list[str] = []
        for number in count():
            if (one := jobs.draw()) is None:
                break
            found.append(one[1])
            if not answer_late:
                jobs.note(422 if number % 2 else 201)
            if len(found) == 4:
                break
        return found

    assert specs(answer_late=True) == specs(answer_late=False)
