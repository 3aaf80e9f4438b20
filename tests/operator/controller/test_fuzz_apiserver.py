"""A small fuzz at a real API server and a real operator, with small jobs. `make fuzz` draws ten
times as much, and judges the times, which mean something on a quiet machine alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.fuzz.fuzz_course import run
from bench.fuzz.size import FuzzSize
from tests.support.kube_api import Api

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(900)]


def test_no_drawn_job_breaks_the_operator_or_is_left_without_an_answer(
    api: Api, tmp_path: Path
) -> None:
    size = FuzzSize(seed=19, jobs=200, templates=600, samples=2, clients=2, workers=20)
    outcome = run(api, tmp_path, size, print)
    assert outcome.problems() == []
    assert (outcome.findings.jobs, outcome.findings.templates) == (200, 600)
    assert outcome.findings.dry_runs > 50
    assert outcome.findings.reasons["InvalidSpec"] > 20
    assert outcome.findings.reasons["CoordinatorPending"] > 20
    assert len(outcome.quiet) >= 4
    assert outcome.beside
