"""What ranks have committed is read from their memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from regroup_trainer.protocol.commit_page import CommitPage
from soak.commits import RankMemory, newest
from soak.evidence import Sample
from soak.site import Job, Site
from soak.watch import Watch
from tests.support.soak_site import FakeJob, pod

TRAINER = Path(__file__).resolve().parents[2] / "trainer"
RANK = """
import sys, time
sys.path.insert(0, sys.argv[1])
from regroup_trainer.protocol.commit_page import CommitPage
before, page = CommitPage(), CommitPage()
before.write(300, time.time() - 5)
page.write(281, float(sys.argv[2]) or time.time())
print(flush=True)
sys.stdin.read()
"""


def rank(clock: float = 0.0) -> subprocess.Popen[bytes]:
    """A process with a commit of its own, and one of the rank that its parent had before."""
    command = [sys.executable, "-c", RANK, str(TRAINER), str(clock)]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert made.stdout is not None and made.stdout.readline()
    return made


def test_the_newest_commit_of_two_ranks_is_read_while_they_run() -> None:
    with rank() as one, rank() as other:
        memories = [RankMemory.of(process.pid) for process in (one, other)]
        now = time.time()
        assert {commit.step for commit in memories[0].commits(now)} == {300, 281}
        commit = newest(memories, now)
        assert commit and commit.step == 281 and commit.time == pytest.approx(now, abs=30)
        other.kill()
        other.wait(60)
        assert newest(memories, now) is None
        one.kill()
    with pytest.raises((LookupError, OSError)):
        RankMemory.of(one.pid)


@pytest.mark.parametrize(
    ("steps", "known"), [((8, 7, 7), 7), ((8, 8, 7), 8), ((7, 300), 7), ((8,), None), ((), None)]
)
def test_a_commit_that_one_rank_alone_has_seen_does_not_count(
    steps: tuple[int, ...], known: int | None
) -> None:
    ranks = [SimpleNamespace(commits=lambda now, step=step: [Sample(now, step)]) for step in steps]
    found = newest(cast(list[RankMemory], ranks), 100.0)
    assert (found and found.step) == known


@pytest.mark.parametrize("minutes", [7, -7])
def test_a_commit_at_the_time_of_a_wrong_clock_is_left_out(minutes: int) -> None:
    now = time.time()
    with rank(now + 60 * minutes) as process:
        assert [one.step for one in RankMemory.of(process.pid).commits(now)] == [300]
        process.kill()


def test_a_page_without_a_commit_is_none() -> None:
    page = CommitPage()
    memory = RankMemory.of(os.getpid())
    assert memory.pages
    assert not list(memory.commits(time.time()))
    page.close()


def test_a_look_keeps_each_commit_of_a_job_once() -> None:
    page = CommitPage()
    names = {os.getpid(): "rank-0", 1: "python"}  # this process stands in for the rank of each
    site = cast(Site, SimpleNamespace(processes=lambda _pod: names))
    job = cast(Job, FakeJob("w0", "w1"))
    seen = Watch(site, (job,))
    seen.look_at_commits(job)
    assert not seen.commits[job.name], "nobody has looked for its pods yet"
    seen._members[job.name] = [pod("w0"), pod("w1")]
    for step in (5, 5, 6):
        page.write(step, time.time())
        seen.look_at_commits(job)
        seen.look_at_commits(job)
    steps = [one.step for one in seen.commits[job.name]]
    assert steps == [5, 5, 6], "two commits of step 5, at different times"
    page.close()
