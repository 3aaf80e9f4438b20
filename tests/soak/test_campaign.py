"""The times of a campaign, and what it keeps of a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from soak import evidence, reference
from soak.campaign import SETTLED_SECONDS, Campaign, rest_of_pause
from soak.checker import judge
from soak.reference import Reference
from soak.site import Job, Site
from soak.watch import Watch
from tests.support.soak_job import Written


@pytest.mark.parametrize(
    ("pause", "whole", "rest"), [(12.0, True, 8.0), (1.0, True, 0.0), (1.0, False, 1.0)]
)
def test_the_time_in_which_jobs_were_seen_whole_is_part_of_the_pause_before_a_fault(
    pause: float, whole: bool, rest: float
) -> None:
    assert SETTLED_SECONDS == 4.0
    assert rest_of_pause(pause, whole) == rest


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
        metadata = {"name": f"gpt-w{worker}-0"}
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
    seen = Watch(cast(Site, job), jobs)
    seen._look(jobs[0])
    campaign._judge(jobs, ["fsdp"], seen)
    read = evidence.read(folder / "gpt", reference.load_kept(folder))
    assert [judge(read)] == campaign.verdicts
    (kept,) = read.kept
    (snapshot,) = kept.snapshots
    assert (snapshot.stored.step, sorted(*snapshot.holders)) == (8, ["gpt-w0-0", "gpt-w1-0"])
    assert campaign.verdicts[0].steps == 14
