"""The benchmark of two versions: whose modules each uses, which faults, and their summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import recovery
from bench.recovery_versions import CASES, METRICS, QUICK, arguments, run, summarise

RECOVERY = """
from contextlib import nullcontext
from types import SimpleNamespace

from bench.recovery_faults import struck

START_SECONDS = RECOVER_SECONDS = 0.0


def start(subject, workers):
    return nullcontext(SimpleNamespace(detected=lambda since: since + 0.5))


def steps_after_save(case, number):
    return 7


def trained(training, workers, least=0):
    return 40


def wait(training, seconds, condition):
    return condition()


def outcome(training, fault, case):
    return {"down_seconds": float(len(struck)), "lost_steps": 0.0}
"""
FAULTS = """
from types import SimpleNamespace

struck = []


def strike(training, case):
    struck.append(case)
    return SimpleNamespace(time=100.0, planned=case in ("join", "shrink"))
"""
"""What a series uses of a former version."""


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """A former version: the series must use its modules, not those of this checkout."""
    bench = tmp_path / "bench"
    bench.mkdir()
    (bench / "__init__.py").touch()
    (bench / "recovery.py").write_text(RECOVERY)
    (bench / "recovery_faults.py").write_text(FAULTS)
    (bench / "recovery_settings.py").write_text("LEAST_WORKERS, SAVE_EVERY, WORKERS = 2, 20, 3")
    (bench / "recovery_subject.py").write_text("class Subject: pass")
    return tmp_path


def test_a_version_suffers_a_series_of_faults_with_its_own_modules(version: Path) -> None:
    found = run(version, ["rank-kill", "regroup", "3"])
    assert [each["down_seconds"] for each in found] == [1.0, 2.0, 3.0]
    assert {each["detect_seconds"] for each in found} == {0.5}


def test_a_worker_that_joined_leaves_before_the_next_joins(version: Path) -> None:
    found = run(version, ["join", "regroup", "2"])
    assert [each["down_seconds"] for each in found] == [1.0, 3.0]
    assert {each["detect_seconds"] for each in found} == {None}


@pytest.mark.parametrize("case", [*CASES, QUICK])
def test_each_case_is_one_of_the_benchmark_of_recoveries(case: str) -> None:
    plan = recovery.plan(quick=False)
    fault, subject, faults = arguments(case)
    assert fault in plan.cases
    assert subject in plan.subjects
    assert int(faults) > 1


def test_a_series_is_summed_up_by_medians_and_the_sum_of_lost_steps() -> None:
    faults = [
        {"detect_seconds": detect, "down_seconds": down, "lost_steps": 1.0}
        for detect, down in ((0.1, 0.2), (0.3, 0.9), (None, 0.4))
    ]
    found = summarise(faults)
    assert found == {"detect_seconds": 0.2, "down_seconds": 0.4, "lost_steps": 3.0}
    assert tuple(found) == METRICS
