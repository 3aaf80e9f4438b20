"""What the benchmark of operators reads of them."""

from __future__ import annotations

import pytest

from bench.operators import subjects
from bench.operators.subjects import WAITING, RegroupOperator, TrainerV2


def test_a_leader_has_synced_when_it_has_planned_for_each_job_and_none_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    series: dict[str, float] = {}
    scrapes: list[str] = []

    def scrape(replica: str) -> dict[str, float]:
        scrapes.append(replica)
        return series

    monkeypatch.setattr(subjects, "_series", scrape)
    subject = object.__new__(RegroupOperator)

    def has_planned(jobs: int, waiting: int | None = 0, waits_now: float = 0.0) -> bool:
        monkeypatch.setattr(subjects, "_waiting", lambda _replica: waiting)
        series.clear()
        series[WAITING] = waits_now
        for number in range(jobs):
            for phase, value in (("Running", 1.0), ("Pending", 0.0)):
                labels = f'namespace="a",trainingjob="job-{number}",phase="{phase}"'
                series[f"trainingjob_status_phase{{{labels}}}"] = value
        return subject.has_synced("operator-1", 3)

    assert has_planned(3)
    assert not has_planned(2)
    assert not has_planned(3, waits_now=1.0)
    before = len(scrapes)
    assert not has_planned(3, waiting=1)
    assert not has_planned(3, waiting=None), "it does not answer"
    assert len(scrapes) == before, "a scrape takes the leader's time"


def test_a_job_of_trainer_v2_trains_once_its_status_says_that_its_pods_are_ready() -> None:
    subject = object.__new__(TrainerV2)
    assert not subject.trains({})
    assert not subject.trains({"status": {"jobsStatus": [{"name": "node", "active": 1}]}})
    assert subject.trains({"status": {"jobsStatus": [{"name": "node", "ready": 1}]}})
