"""The learning benchmark runs, and its curve can be drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.learning import main
from bench.learning_picture import draw


@pytest.mark.long
def test_a_quick_run_trains_and_compresses_the_same_text(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--quick", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "learning.json").read_text())["rows"]
    bits = {row["subject"]: row["median"] for row in rows if row["metric"] == "bits_per_byte"}
    assert set(bits) == {"regroup", "gzip", "xz"}
    assert bits["xz"] < bits["gzip"] < bits["regroup"] < 8


def test_the_curve_is_drawn_with_the_compressors_lines(tmp_path: Path) -> None:
    curve = {"trained_megabytes": [0.5, 1.0], "bits_per_byte": [3.0, 2.0], "gzip": 1.9, "xz": 1.7}
    figure = draw(curve)
    assert [line.get_linestyle() for line in figure.axes[0].lines] == ["-", "--", "--"]
    figure.savefig(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
