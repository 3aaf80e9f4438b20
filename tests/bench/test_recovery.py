"""The recovery benchmark runs: on real nodes a real process is killed, and training goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import recovery
from bench.harness import Values
from bench.outcome import DOES_NOT_TRAIN, FAILED, Fault
from bench.recovery import DETECTORS, SUBJECTS, main, settings, steps_after_save, tried
from bench.recovery_faults import CASES
from bench.recovery_settings import LOST_SECONDS, SAVE_EVERY, SNAPSHOT_EVERY
from bench.recovery_subject import NotTrainingError
from bench.recovery_torchft import LIGHTHOUSE

pytestmark = pytest.mark.cluster


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_quick_run_kills_a_rank_and_compares_every_loss(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--quick", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "recovery.json").read_text())["rows"]
    ours = {row["metric"]: row["median"] for row in rows}
    assert ours["recovered"] == 1
    assert 0 < ours["detect_seconds"] < ours["down_seconds"]
    assert ours["lost_steps"] <= SAVE_EVERY
    assert ours["loss_difference"] < 1e-4


def test_each_row_lists_how_often_its_subject_saves_and_how_it_notices_losses() -> None:
    for subject in SUBJECTS:
        for case in CASES:
            text = settings(case, subject)
            assert f"every {SAVE_EVERY} steps" in text
            assert "recovered within 60.0 s" in text
            assert "the dead replaced after 1.0 s, on another node after 5.0 s" in text
            assert DETECTORS[subject.removesuffix("-fsdp")] in text


def test_peers_notice_a_loss_after_the_time_that_regroup_takes() -> None:
    for subject in ("torchrun-tuned", "ft_launcher", "torchft"):
        assert f"{LOST_SECONDS} s" in DETECTORS[subject]
    assert "join_timeout" not in LIGHTHOUSE


def test_faults_come_at_any_time_between_two_saves_and_are_not_in_step_with_snapshots() -> None:
    drawn = [steps_after_save(case, run) for case in CASES for run in range(1, 6)]
    assert drawn == [steps_after_save(case, run) for case in CASES for run in range(1, 6)]
    assert {1, SAVE_EVERY - 1} <= set(drawn) <= set(range(1, SAVE_EVERY))
    for case in CASES:
        assert len({steps_after_save(case, run) % SNAPSHOT_EVERY for run in range(1, 6)}) > 1


def test_a_peer_that_never_recovers_gets_all_runs_and_the_faults_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults: dict[str, list[int]] = {"regroup": [], "torchrun": []}

    def recover(_case: str, subject: str, after_save: int, _reference: object) -> Values:
        faults[subject].append(after_save)
        return FAILED

    monkeypatch.setattr(recovery, "recover", recover)
    monkeypatch.setattr(recovery, "undisturbed", lambda _subject, _quick: {})
    for _ in range(5):
        assert recovery.measure("rank-kill", "torchrun") == FAILED
        recovery.measure("rank-kill", "regroup")
    assert len(faults["torchrun"]) == 5
    assert faults["torchrun"] == faults["regroup"]


def test_a_failed_start_is_tried_again_and_failing_twice_is_no_failed_recovery() -> None:
    tries: list[int] = []

    def slow_at_first() -> Values:
        tries.append(1)
        if len(tries) == 1:
            raise NotTrainingError("slow")
        return {"recovered": 1.0}

    def never() -> Values:
        raise NotTrainingError("never")

    assert tried(slow_at_first) == {"recovered": 1.0}
    assert tried(never) == DOES_NOT_TRAIN
    assert "recovered" not in DOES_NOT_TRAIN


def test_a_peer_whose_undisturbed_run_does_not_train_has_not_failed_to_recover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(_subject: str, _quick: bool) -> dict[int, float]:
        raise NotTrainingError("never")

    monkeypatch.setattr(recovery, "undisturbed", never)
    assert recovery.measure("rank-kill", "torchrun") == DOES_NOT_TRAIN


def test_the_course_with_the_median_down_time_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_courses", [])
    for seconds in (3.0, 1.0, 2.5, 9.0, 2.0):
        recovery.keep([], Fault(0.0), {"down_seconds": seconds})
    recovery.write_course(tmp_path)
    assert json.loads((tmp_path / recovery.COURSE).read_text())["down_seconds"] == 2.5
