"""Lines of a log that a process is still writing."""

from __future__ import annotations

from pathlib import Path

from regroup.local.log_lines import LogLines


def test_a_line_is_given_once_it_has_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = LogLines(log)
    assert lines.new() == []
    log.write_text("one\nrank 0: two\nthr")
    assert lines.new() == ["one", "rank 0: two"]
    log.write_text("one\nrank 0: two\nthree\nrank 1: four\n")
    assert lines.of_ranks() == ["rank 1: four"]
