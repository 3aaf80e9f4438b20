"""The protection benchmark runs: two trainings take turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.protection import QUICK_PAIRS, main


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_bounds_the_ratio(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--quick", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "protection.json").read_text())["rows"]
    found = {row["metric"]: row["median"] for row in rows}
    assert found["pairs"] == QUICK_PAIRS
    assert 0.1 < found["ratio_low"] <= found["step_time_ratio"] <= found["ratio_high"]
