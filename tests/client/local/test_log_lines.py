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
    assert list(lines.of_ranks(has_ended=False)) == ["rank 1: four"]


def test_all_that_is_left_is_given_once_the_writer_has_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    written = [f"rank 0: {number} {'x' * 100}" for number in range(40_000)]
    log.write_text("\n".join(["of the agent", *written, ""]))
    lines = LogLines(log)
    first = list(lines.of_ranks(has_ended=False))
    assert 0 < len(first) < len(written)
    assert first + list(lines.of_ranks(has_ended=True)) == written
