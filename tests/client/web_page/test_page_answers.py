"""How long what was read is kept, and what a source that hangs costs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from regroup.web_page.job_source import SourceError
from regroup.web_page.page_answers import MOST_KEPT, PageAnswers, in_thread
from tests.support.page_source import PageSource
from tests.support.waiting import until


async def test_a_job_is_read_again_after_a_while() -> None:
    now, source = [0.0], PageSource()
    answers = PageAnswers(source, lambda: now[0])
    for time, reads in ((0.0, 1), (1.0, 1), (2.0, 2)):
        now[0] = time
        await answers.job("team/job-0")
        assert source.reads["view"] == reads


async def test_a_failed_read_is_not_kept() -> None:
    source = PageSource(error="no answer")
    answers = PageAnswers(source)
    with pytest.raises(SourceError):
        await answers.jobs(0, "")
    source.error = ""
    assert b"job-0" in await answers.jobs(0, "")


async def test_what_is_kept_has_a_bound() -> None:
    answers = PageAnswers(PageSource())
    for rank in range(3 * MOST_KEPT):
        await answers.logs("team/job-0", rank)
    assert len(answers._kept) == MOST_KEPT


async def test_a_caller_that_goes_away_leaves_the_read_to_the_others() -> None:
    go_on, source = threading.Event(), PageSource()
    read = source.jobs
    source.jobs = lambda: (go_on.wait(30), read())[1]  # type: ignore[method-assign]
    answers = PageAnswers(source)
    first, second = (asyncio.ensure_future(answers.jobs(0, "")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    go_on.set()
    assert b"job-0" in await second
    assert source.reads["jobs"] == 1


async def test_threads_do_not_keep_the_process() -> None:
    go_on, threads = threading.Event(), list[threading.Thread]()

    def hang() -> None:
        threads.append(threading.current_thread())
        go_on.wait(30)

    waiting = asyncio.ensure_future(in_thread(hang))
    await until("the thread to begin", lambda: bool(threads))
    assert threads[0].daemon
    waiting.cancel()
    go_on.set()
    threads[0].join(30)
