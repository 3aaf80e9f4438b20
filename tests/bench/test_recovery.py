"""The recovery benchmark runs: real processes are killed, and training goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.recovery import main


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_kills_a_rank_of_each_subject(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--quick", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "recovery.json").read_text())["rows"]
    ours = {row["metric"]: row["median"] for row in rows if row["subject"] == "regroup"}
    assert ours["recovered"] == 1
    assert ours["lost_steps"] > 0
    assert {row["subject"] for row in rows} == {"regroup", "torchrun-tuned"}
