"""The benchmark of the throughput measures ours, and says why a peer did not take part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import throughput


@pytest.mark.long
def test_a_quick_run_reports_the_share_of_a_bare_script_and_why_a_peer_has_none(
    tmp_path: Path,
) -> None:
    done = CliRunner().invoke(throughput.main, ["--quick", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "throughput.json").read_text())["rows"]
    found = {(row["subject"], row["metric"]): row for row in rows}
    assert 0 < found["regroup", "ratio_to_bare"]["median"] < 10
    assert found["regroup", "tokens_per_second"]["median"] > 0
    assert found["regroup", "ran"]["median"] == 1
    assert found["accelerate", "ran"]["median"] == 0
    assert ("accelerate", "ratio_to_bare") not in found
    assert "accelerate takes" in found["accelerate", "ran"]["settings"]


def test_the_first_exception_that_torchrun_printed_is_the_reason() -> None:
    text = (
        "W1 launcher\n[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: no: such "
        "thing\nmore\n"
    )
    assert throughput.last_error(text) == "ValueError: no: such thing"
    assert throughput.last_error("only this\n") == "only this"
    assert throughput.last_error("") == "the subject printed nothing"
