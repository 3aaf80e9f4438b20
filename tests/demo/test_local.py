"""The demo without a cluster, run completely with a small model."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo import job, local
from demo.checks import broken, summary
from demo.screen import Screen


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("warm_workers")
def test_the_worker_of_rank_0_is_killed_and_all_promises_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = tmp_path / "job.yaml"
    sample.write_text(
        job.SAMPLE.read_text()
        .replace("preset: 1m", "preset: tiny")
        .replace("steps: 500", "steps: 800")
    )
    monkeypatch.setattr(job, "SAMPLE", sample)
    monkeypatch.setattr(local, "AWAY_SECONDS", 2.0)
    facts = local.run_demo(tmp_path, Screen())
    printed = capsys.readouterr().out
    assert [check.sentence for check in broken(facts)] == []
    assert "Killing worker" in printed
    assert summary(facts)["worldSizes"] == [3, 2, 3]
    assert summary(facts)["kubernetesVersion"] is None
