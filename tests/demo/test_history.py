"""A history is written, read and replayed without a loss that a picture would show."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.history import (
    History,
    bridged,
    export,
    open_metrics,
    packed,
    read,
    replay,
    unpacked,
    write,
)
from demo.picture.data import Source
from demo.promql import Sampled

LABELS = (("__name__", "trainingjob_loss"), ("pod", 'a"b'))


def test_values_are_packed_to_runs_and_unpacked() -> None:
    values = [None, None, 3.0, 3.0, 3.0, 0.1234567, None, 1.75e9 + 0.5]
    assert packed(values) == "_x2 3x3 0.123457 _ 1750000000.500"
    assert list(unpacked(packed(values))) == [None, None, 3, 3, 3, 0.123457, None, 1.75e9 + 0.5]


def test_a_late_scrape_leaves_no_gap_and_an_end_stays_an_end() -> None:
    assert bridged([None, 1.0, None, 2.0, None]) == [None, 1.0, 1.0, 2.0, None]
    long = [1.0, *[None] * 16, 2.0]
    assert bridged(long) == long


def test_a_file_holds_what_was_written_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    history = History(1000.0, [Sampled(LABELS, [1.0, None, 2.5])])
    write(history, tmp_path / "one.gz")
    write(history, tmp_path / "two.gz")
    assert read(tmp_path / "one.gz") == history
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


def test_labels_are_quoted_and_missing_values_left_out() -> None:
    text = open_metrics(History(1000.0, [Sampled(LABELS, [1.0, None, 2.5])]))
    name = r'trainingjob_loss{pod="a\"b"}'
    assert text == f"{name} 1.0 1000\n{name} 2.5 1002\n# EOF\n"


@pytest.mark.slow
def test_what_a_prometheus_has_is_the_same_after_a_replay(run: Source, tmp_path: Path) -> None:
    taken = export(run.server, run.window)
    again = replay(open_metrics(taken), tmp_path)
    try:
        returned = export(again.server, run.window)
    finally:
        again.stop()
    assert [one.labels for one in returned.series] == [one.labels for one in taken.series]
    assert len(taken.series) > 50
    loss = [dict(one.labels)["__name__"] for one in taken.series].index("trainingjob_loss")
    assert returned.series[loss].values == taken.series[loss].values
