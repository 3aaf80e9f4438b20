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


def test_a_progress_bar_shows_its_last_drawing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = LogLines(log)
    assert lines.last_drawing() == ""
    log.write_text("one\n\r1/9\r2/9\r3/9\r")
    assert lines.last_drawing() == "3/9"
    log.write_text("x" * 100_000 + "\r4/9")
    assert lines.last_drawing() == "4/9"
    log.write_text("one\n")
    assert lines.last_drawing() == ""
