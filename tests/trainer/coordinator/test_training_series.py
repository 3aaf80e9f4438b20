"""The course of a job in a bounded number of points, over all its coordinators."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.coordinator.training_series import TrainingSeries
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import SERIES_POINTS, Series, SeriesPoint
from regroup_trainer.protocol.rank_messages import Progress


def report(step: int) -> Progress:
    return Progress(generation=GenerationNumber(1, 1), rank=0, step=step, time=2.5e11, loss=0.5)


def test_reports_that_are_near_each_other_make_one_point() -> None:
    series = TrainingSeries()
    assert [series.add(report(step), 2, t) for step, t in enumerate((10.0, 10.5, 11.0), 1)] == [
        True, False, True,
    ]  # fmt: skip
    assert [(p.time, p.step, p.world_size) for p in series.value().points] == [
        (10.0, 1, 2), (11.0, 3, 2),
    ]  # fmt: skip


def test_a_long_run_keeps_its_whole_course() -> None:
    series = TrainingSeries()
    for second in range(5 * SERIES_POINTS):
        series.add(report(second), 1, float(second))
    kept = series.value()
    assert SERIES_POINTS // 2 <= len(kept.points) <= SERIES_POINTS
    assert kept.points[0].time == 0
    assert 5 * SERIES_POINTS - kept.points[-1].time <= 2 * kept.every
    gaps = {b.time - a.time for a, b in zip(kept.points, kept.points[1:], strict=False)}
    assert max(gaps) <= 2 * kept.every


def test_a_successor_goes_on_from_what_was_kept() -> None:
    former = TrainingSeries()
    for second in range(10):
        former.add(report(second), 4, float(second))
    series = TrainingSeries()
    series.add(report(6), 3, 8.5)
    series.continue_from(former.value())
    steps = [(p.time, p.step, p.world_size) for p in series.value().points]
    assert steps == [*((float(t), t, 4) for t in range(9)), (8.5, 6, 3), (9.0, 9, 4)]


def test_what_a_coordinator_with_a_fast_clock_has_kept_stays_in_the_order_of_time() -> None:
    former = TrainingSeries()
    for second in range(3):
        former.add(report(second), 4, 3600.0 + second)
    early, late = TrainingSeries(), TrainingSeries()
    early.continue_from(former.value())
    for second in range(3):
        early.add(report(3 + second), 3, 10.0 + second)
        late.add(report(3 + second), 3, 10.0 + second)
    late.continue_from(former.value())
    for series in (early, late):
        assert [p.step for p in series.value().points] == [3, 4, 5, 0, 1, 2]


def test_a_full_series_and_own_points_are_as_many_as_are_allowed() -> None:
    series = TrainingSeries()
    for second in range(SERIES_POINTS):
        series.add(report(SERIES_POINTS + second), 1, float(SERIES_POINTS + second))
    series.continue_from(FULL)
    points = series.value().points
    assert SERIES_POINTS // 2 <= len(points) <= SERIES_POINTS
    assert [p.step for p in points] == sorted(p.step for p in points)
    assert points[0].step == 0
    assert points[-1].step >= 2 * SERIES_POINTS - 2


FULL = Series(
    points=tuple(
        SeriesPoint(time=float(second), step=second, world_size=1)
        for second in range(SERIES_POINTS)
    )
)


@given(st.lists(st.floats(0, 1e6), max_size=50), st.integers(1, 4096))
def test_it_is_always_a_valid_series(times: list[float], every: int) -> None:
    """Whatever clocks do, and however full the one before is."""
    series = TrainingSeries()
    series.continue_from(FULL.model_copy(update={"every": float(every)}))
    for time in times:
        series.add(report(1), 1, time)
    assert len(series.value().points) <= SERIES_POINTS
