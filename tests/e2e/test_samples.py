"""The sample jobs train as they are printed; `gpt-demo.yaml` is played to its end by the demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = pytest.mark.cluster
SAMPLES = Path(__file__).parents[2] / "manifests" / "samples"


def test_the_smallest_job_trains_as_printed(installation: Installation) -> None:
    job = installation.start(yaml.safe_load((SAMPLES / "smallest.yaml").read_text()))
    job.wait_for_ranks(3, seconds=120)
    wait_until("some steps", lambda: installation.committed_steps(job) >= 10, seconds=120)
    # A worker that comes after the start's grace joins at a step boundary; nothing else may happen.
    recoveries = job.status()["recoveries"]
    assert all((r["cause"], r["lostSteps"]) == ("resize", 0) for r in recoveries), recoveries
    printed = installation.kubectl("get", "trainingjob", job.name, "-n", job.namespace)
    assert all(
        column in printed for column in ("PHASE", "WORKERS", "STEP", "CKPT", "GOODPUT", "Running")
    )
