"""The points of `metrics()` as a DataFrame. pandas is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from regroup.training_client.client_errors import TrainingClientError
from regroup_trainer.protocol.job_status import SeriesPoint

if TYPE_CHECKING:
    from pandas import DataFrame


def to_frame(points: Iterable[SeriesPoint]) -> DataFrame:
    """A row for each point, a column for each of its fields; `time` in UTC. Raises
    TrainingClientError without pandas.
    """
    try:
        from pandas import DataFrame, to_datetime
    except ImportError:
        raise TrainingClientError("to_frame: type pip install pandas") from None
    rows = [point.model_dump() for point in points]
    frame = DataFrame(rows, columns=list(SeriesPoint.model_fields))
    frame["time"] = to_datetime(frame["time"], unit="s", utc=True)
    return frame
