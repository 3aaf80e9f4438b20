"""The recovery benchmark runs: on real nodes a real process is killed, and training goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.recovery import DETECTORS, SUBJECTS, main, settings
from bench.recovery_faults import CASES
from bench.recovery_settings import SAVE_EVERY

pytestmark = pytest.mark.cluster


@pytest.mark.slow
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


def test_each_row_tells_how_often_its_subject_saves_and_how_it_notices_losses() -> None:
    for subject in SUBJECTS:
        for case in CASES:
            told = settings(case, subject)
            assert f"every {SAVE_EVERY} steps" in told
            assert DETECTORS[subject.removesuffix("-fsdp")] in told
