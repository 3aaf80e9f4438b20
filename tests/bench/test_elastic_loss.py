"""The benchmark of elastic losses runs: real generations, ours and naive ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.elastic_loss import difference, main


def test_the_difference_is_that_of_the_worst_step() -> None:
    assert difference([4.0, 2.0, 1.1], [4.0, 2.5, 1.0]) == pytest.approx(0.2)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_quick_run_measures_rounding_exactness_and_what_it_costs(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--quick", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "elastic_loss.json").read_text())["rows"]
    found = {(row["case"], row["subject"], row["metric"]): row["median"] for row in rows}
    assert found["resizes", "regroup", "relative_difference"] <= 1e-5
    assert found["resizes-exact", "regroup", "relative_difference"] == 0
    assert found["resizes", "naive-mean", "relative_difference"] > 1e-5
    assert found["resizes-exact", "regroup", "step_time_ratio"] > 0
