"""The times of a campaign, and what it keeps of a job."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from devcluster.errors import DeadlineError
from regroup_trainer.protocol.commit_page import CommitPage
from soak import campaign as campaigning
from soak import evidence, reference, watch
from soak.aim import Aim, Missed, Struck
from soak.campaign import SETTLED_SECONDS, TRIES, Campaign, felt_by_jobs, rest_of_pause
from soak.checker import judge
from soak.draw import Episode, Fault
from soak.reference import Reference
from soak.site import Job, Site
from soak.watch import Watch
from tests.support.soak_job import Written
from tests.support.soak_site import FakeJob, FakeSite


@pytest.mark.parametrize(
    ("pause", "whole", "rest"), [(12.0, True, 8.0), (1.0, True, 0.0), (1.0, False, 1.0)]
)
def test_the_time_in_which_jobs_were_seen_whole_is_part_of_the_pause_before_a_fault(
    pause: float, whole: bool, rest: float
) -> None:
    assert SETTLED_SECONDS == 4.0
    assert rest_of_pause(pause, whole) == rest


def made(tmp_path: Path) -> Campaign:
    """A campaign that has not begun."""
    site = cast(Site, FakeSite())
    return Campaign(site, tmp_path / "seed-7.jsonl", print, Reference(site, print))


def struck_by(
    campaign: Campaign,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    *outcomes: Struck | Missed,
    deadline: float = math.inf,
) -> None:
    """One fault of this kind, meant for the first of two jobs, with what comes of each try; the
    last one comes again and again.
    """
    rest = list(outcomes)

    def strike(_aim: Aim, _fault: Fault) -> Struck:
        outcome = rest.pop(0) if len(rest) > 1 else rest[0]
        if isinstance(outcome, Missed):
            raise outcome
        return outcome

    monkeypatch.setattr(campaigning, "strike", strike)
    monkeypatch.setattr(watch, "memory", lambda *_: [])
    monkeypatch.setattr(campaigning, "are_whole", lambda _jobs: True)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    jobs = FakeJob("w0", "w1", name="first"), FakeJob("v0", name="second")
    both = cast(tuple[Job, ...], jobs)
    fault = Fault(1, kind, 0, 0.5, 1.0, 5.0)
    campaign._try(both, fault, Watch(campaign.site, both), deadline)


@pytest.mark.parametrize(
    ("kind", "excused", "felt"),
    [
        ("all-nodes-power-cut", ["first", "second"], ["first", "second"]),
        ("overload", [], ["first", "second"]),
        ("volume-away", ["first"], ["first"]),
        ("volume-errors", ["first"], ["first"]),
        ("volume-full", [], ["first"]),
        ("rank-killed", [], ["first"]),
    ],
)
def test_the_clock_of_a_job_stands_while_nobody_can_expect_steps_of_it(
    kind: str,
    excused: list[str],
    felt: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    campaign = made(tmp_path)
    struck_by(campaign, kind, monkeypatch, Struck("it is gone"))
    assert [name for name, _, _ in campaign.excused] == excused
    assert campaign.tried == [(name, kind) for name in felt]
    assert [fault["proof"] for fault in campaign.unjudged] == ["it is gone"]


@pytest.mark.parametrize(
    ("kind", "refused"), [("volume-full", ["first"]), ("volume-slow", []), ("rank-killed", [])]
)
def test_when_the_volume_took_no_files_is_kept(
    kind: str, refused: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = made(tmp_path)
    struck_by(campaign, kind, monkeypatch, Struck("it is full"))
    assert [name for name, _, _ in campaign.refusals] == refused


def test_a_power_cut_of_all_nodes_hits_all_ranks_of_all_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = made(tmp_path)
    struck_by(campaign, "all-nodes-power-cut", monkeypatch, Struck("off", nodes=("n1", "n2")))
    assert [(name, {*hit.ranks}, {*hit.pods}) for name, hit in campaign.hits] == [
        ("first", {0, 1}, {"w0", "w1"}),
        ("second", {0}, {"v0"}),
    ]


def test_a_fault_that_did_not_strike_is_kept_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = made(tmp_path)
    struck_by(campaign, "rank-killed", monkeypatch, Missed("rank 0 has no process in w0"))
    missed = campaign.missed[0]
    assert (missed["kind"], missed["reason"]) == ("rank-killed", "rank 0 has no process in w0")
    assert (missed["job"], missed["time"] > 0) == ("first", True)
    assert not campaign.unjudged
    tries = len(campaign.missed)
    assert tries == TRIES
    assert campaign.tried == [("first", "rank-killed")] * tries, "each may have done something"
    assert cast(FakeSite, campaign.site).repairs == tries, "each may have left something away"


def test_a_fault_that_missed_is_tried_again_until_it_strikes_or_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = made(tmp_path)
    outcomes = Missed("no worker trains"), Missed("only 2 workers train"), Struck("it is gone")
    struck_by(campaign, "rank-killed", monkeypatch, *outcomes)
    reasons = [missed["reason"] for missed in campaign.missed]
    assert reasons == ["no worker trains", "only 2 workers train"]
    assert [fault["proof"] for fault in campaign.unjudged] == ["it is gone"]
    struck_by(campaign, "etcd-away", monkeypatch, Struck("etcd is gone"), deadline=0.0)
    assert len(campaign.unjudged) == 1


def test_a_fault_that_is_undone_needs_no_repair_and_one_that_cannot_be_undone_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stays_away() -> None:
        raise DeadlineError("timed out after 120 s: A ready API server")

    campaign = made(tmp_path)
    site = cast(FakeSite, campaign.site)
    struck_by(campaign, "etcd-away", monkeypatch, Struck("etcd is gone"))
    assert site.repairs == 0
    struck_by(campaign, "etcd-away", monkeypatch, Struck("etcd is gone", stays_away))
    assert site.repairs == 1
    assert len(campaign.unjudged) == 2


def test_what_a_fault_has_hit_without_a_proof_explains_a_loss_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = made(tmp_path)
    apart = Missed("w0 and w1 did not end together (0.300 s)", ("w0", "w1"))
    struck_by(campaign, "two-within-200-ms", monkeypatch, apart)
    assert len(campaign.hits) == 2 * TRIES
    hits = dict(campaign.hits)
    assert (sorted(hits["first"].ranks), sorted(hits["first"].pods)) == ([0, 1], ["w0", "w1"])
    assert not hits["second"].ranks


def test_a_job_is_made_for_the_faults_that_it_is_to_feel() -> None:
    kinds = (("rank-killed", 0), ("rank-out-of-memory", 1), ("overload", 1))
    faults = tuple(Fault(number, kind, job, 0, 0, 0) for number, (kind, job) in enumerate(kinds))
    assert felt_by_jobs(Episode(("ddp", "fsdp"), faults)) == [
        ["rank-killed", "overload"],
        ["rank-out-of-memory", "overload"],
    ]


class Ended:
    """A job of three workers whose pods run no more; two of them hold its snapshot."""

    name, meeting_role, is_torchrun = "gpt", "coordinator", False

    def __init__(self, written: Written, nodes: Path) -> None:
        self.written = written.written()
        self._folder, self._nodes = written.folder, nodes
        for worker in range(2):
            held = self.scratch(self._pod(worker)) / "regroup-x" / "snapshots"
            held.mkdir(parents=True)
            (held / "held-8-1-1-1-0.json").touch()

    def _pod(self, worker: int) -> dict[str, Any]:
        metadata = {"name": f"gpt-w{worker}-0", "uid": f"uid-{worker}"}
        return {
            "metadata": metadata,
            "spec": {"nodeName": f"n{worker}"},
            "status": {"phase": "Running"},
        }

    def scratch(self, pod: Mapping[str, Any]) -> Path:
        """As of a site."""
        return self._nodes / str(pod["metadata"]["name"])

    def runs(self, _node: str) -> bool:
        """As of a site."""
        return True

    def processes(self, _pod: Mapping[str, Any]) -> dict[int, str]:
        """As of a site: this process stands in for each rank."""
        return {os.getpid(): "rank-0"}

    def folder(self) -> Path:
        """What it wrote."""
        return self._folder

    def status(self) -> dict[str, Any]:
        """With the ranks, as while it trained."""
        workers = [{"pod": f"gpt-w{rank}-0", "rank": rank} for rank in range(3)]
        return {**self.written.status, "workers": workers}

    def pods(self, _role: str) -> list[dict[str, Any]]:
        """Three workers."""
        return [self._pod(worker) for worker in range(3)]

    def suspend(self) -> bool:
        """It is."""
        return True

    def delete(self) -> None:
        """It is gone."""


def test_what_a_campaign_keeps_of_a_job_is_judged_as_the_campaign_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "volume").mkdir()
    job = Ended(Written(tmp_path / "volume"), tmp_path / "nodes")
    folder, jobs = tmp_path / "build" / "seed-7", (cast(Job, job),)
    folder.parent.mkdir()
    undisturbed = Reference(cast(Site, job), print)
    monkeypatch.setattr(undisturbed, "steps", lambda _program, _least: job.written.reference)
    campaign = Campaign(cast(Site, job), folder.with_suffix(".jsonl"), print, undisturbed)
    page, seen = CommitPage(), Watch(cast(Site, job), jobs)
    page.write(14, time.time())
    seen._look(jobs[0])
    page.close()
    campaign._judge(jobs, ["fsdp"], seen)
    read = evidence.read(folder / "gpt", reference.load_kept(folder))
    assert [judge(read)] == campaign.verdicts
    assert [one.step for one in read.commits or ()] == [14]
    (kept,) = read.kept
    (snapshot,) = kept.snapshots
    assert (snapshot.stored.step, sorted(*snapshot.holders)) == (8, ["gpt-w0-0", "gpt-w1-0"])
    assert campaign.verdicts[0].steps == 14
