"""What the benchmark of operators reads of them."""

from __future__ import annotations

import pytest

from bench.operators import subjects
from bench.operators.subjects import LEADS, WAITING, Regroup, TrainerV2


def test_a_leader_has_synced_when_it_has_planned_for_each_job_and_none_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    series: dict[str, float] = {}
    monkeypatch.setattr(subjects, "_series", lambda _replica: series)
    subject = object.__new__(Regroup)

    def has_planned(jobs: int, waiting: float = 0.0, leads: float = 1.0) -> bool:
        series.clear()
        series.update({WAITING: waiting, LEADS: leads})
        for number in range(jobs):
            for phase, value in (("Running", 1.0), ("Pending", 0.0)):
                labels = f'namespace="a",trainingjob="job-{number}",phase="{phase}"'
                series[f"trainingjob_status_phase{{{labels}}}"] = value
        return subject.has_synced(3)

    assert has_planned(3)
    assert not has_planned(2)
    assert not has_planned(3, waiting=1.0)
    assert not has_planned(3, leads=0.0), "it stands by"
    series.clear()
    assert not subject.has_synced(3), "it does not answer"


def test_a_job_of_trainer_v2_trains_once_its_status_says_that_its_pods_are_ready() -> None:
    subject = object.__new__(TrainerV2)
    assert not subject.trains({})
    assert not subject.trains({"status": {"jobsStatus": [{"name": "node", "active": 1}]}})
    assert subject.trains({"status": {"jobsStatus": [{"name": "node", "ready": 1}]}})
