"""The course of a job in a bounded number of points. Pure."""

from __future__ import annotations

from regroup_trainer.protocol.job_status import SERIES_POINTS, Series, SeriesPoint
from regroup_trainer.protocol.rank_messages import Progress


class TrainingSeries:
    """Points of the job's progress. When there are too many, every other one goes, and those that
    follow are twice as far apart.
    """

    def __init__(self) -> None:
        self._points: list[SeriesPoint] = []
        self._every = Series().every

    def add(self, progress: Progress, world_size: int, wall: float) -> bool:
        """Take a point at the wall clock of this process, which ranks cannot set; False where the
        last one is too near.
        """
        if self._points and 0 <= wall - self._points[-1].time < self._every:
            return False
        self._points.append(point_of(progress, world_size, wall))
        self._thin()
        return True

    def continue_from(self, former: Series) -> None:
        """Put what a former coordinator has kept before the own points."""
        self._points = [*former.points, *self._points]
        self._every = max(self._every, former.every)
        self._thin()

    def value(self) -> Series:
        """All that is kept. Clocks of two coordinators may differ: the order is by time."""
        points = sorted(self._points, key=lambda point: point.time)
        return Series(every=self._every, points=tuple(points))

    def _thin(self) -> None:
        while len(self._points) > SERIES_POINTS:
            self._points = self._points[::2]
            self._every *= 2


def point_of(progress: Progress, world_size: int, wall: float) -> SeriesPoint:
    """The point of a report of rank 0 that came at this time."""
    return SeriesPoint(
        time=wall,
        step=progress.step,
        world_size=world_size,
        loss=progress.loss,
        learning_rate=progress.learning_rate,
        tokens_per_second=progress.tokens_per_second,
        steps_per_second=progress.steps_per_second,
    )
