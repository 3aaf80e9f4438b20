"""Points of a job as a DataFrame."""

from __future__ import annotations

import sys

import pytest

from regroup import TrainingClientError, to_frame
from regroup_trainer.protocol.job_status import SeriesPoint

POINTS = [
    SeriesPoint(time=1.5, step=7, world_size=2, loss=0.5),
    SeriesPoint(time=2.5, step=8, world_size=2),
]


def test_a_frame_has_a_row_for_each_point() -> None:
    frame = to_frame(POINTS)
    assert list(frame["step"]) == [7, 8]
    assert list(frame.columns) == list(SeriesPoint.model_fields)
    assert str(frame["time"][0]) == "1970-01-01 00:00:01.500000+00:00"
    assert frame["loss"].isna().tolist() == [False, True]


def test_without_points_it_has_the_same_columns() -> None:
    assert list(to_frame([]).columns) == list(SeriesPoint.model_fields)


def test_without_pandas_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(TrainingClientError, match="to_frame: type pip install pandas"):
        to_frame(POINTS)
