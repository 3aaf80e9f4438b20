"""The benchmark of resuming runs, and ours is as quick as it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.data_resume import main


@pytest.mark.long
def test_a_quick_run_resumes_each_subject(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--quick", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "data_resume.json").read_text())["rows"]
    finished = {row["subject"]: row["median"] for row in rows if row["metric"] == "finished"}
    assert finished["regroup"] == 1
    assert set(finished) == {
        "regroup",
        "grain",
        "statefuldataloader",
        "statefuldataloader-in-order",
    }
