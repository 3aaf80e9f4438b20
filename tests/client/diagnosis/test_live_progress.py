"""The progress of this second, and what happens where it cannot be had."""

from __future__ import annotations

import pytest

from regroup.diagnosis.live_progress import (
    LiveSteps,
    kept_marks,
    live_steps,
    with_live_progress,
)
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.job_record import JobRecord
from regroup.kubernetes.top_table import recent_marks, top_rows
from regroup_trainer.protocol.job_status import Series, SeriesPoint
from tests.support.cluster_objects import NOW, condition, job_record, running_status

LABELS = '{namespace="team",trainingjob="gpt"}'
METRICS = f"""\
# HELP trainingjob_step Steps committed
trainingjob_step{LABELS} 131.0
trainingjob_loss{LABELS} 2.5
trainingjob_tokens_per_second{LABELS} NaN
trainingjob_rank_step{{rank="0"}} 7.0
"""
OF_COORDINATOR = """\
trainingjob_world_size{namespace="team",trainingjob="gpt"} 2.0
trainingjob_time_seconds_total{namespace="team",phase="step",trainingjob="gpt"} 80.0
trainingjob_time_seconds_total{namespace="team",phase="rendezvous",trainingjob="gpt"} 20.0
trainingjob_lost_work_seconds_total{namespace="team",trainingjob="gpt"} 10.0
"""
TRAINING = job_record(running_status(coordinatorTerm=3))


class PlayedPorts:
    """Each pod answers with a text, or an error."""

    def __init__(
        self,
        answer: str | ClusterError = METRICS,
        of_coordinator: str | ClusterError = OF_COORDINATOR,
    ) -> None:
        self.answers = {8472: answer, 8471: of_coordinator}
        self.asked: list[tuple[str, str, int, str]] = []

    def get_of_pod(self, namespace: str, pod: str, port: int, path: str, seconds: float) -> str:
        self.asked.append((namespace, pod, port, path))
        answer = self.answers[port]
        if isinstance(answer, ClusterError):
            raise answer
        return answer


def test_the_worker_with_rank_0_says_how_far_the_job_is() -> None:
    ports = PlayedPorts()
    (job,), live = with_live_progress(ports, [TRAINING], NOW)
    assert ports.asked == [
        ("team", "gpt-w0-1", 8472, "/metrics"),
        ("team", "gpt-c3", 8471, "/metrics"),
    ]
    progress = job.status.progress
    assert (progress.step, progress.loss, progress.tokens_per_second) == (131, 2.5, None)
    assert (progress.total_steps, progress.updated_time) == (500, "2026-11-26T12:00:00Z")
    assert live == {("team", "gpt")}


def test_the_coordinator_says_how_many_ranks_train_and_how_the_time_was_spent() -> None:
    (job,), _live = with_live_progress(PlayedPorts(), [TRAINING], NOW)
    assert (TRAINING.status.world_size, job.status.world_size) == (3, 2)
    assert (TRAINING.status.goodput.ratio, job.status.goodput.ratio) == (0.9583, 0.7)


@pytest.mark.parametrize("answer", [ClusterError("no such pod", 404), "", "<html>"])
def test_a_row_is_live_as_a_whole_or_not_at_all(answer: str | ClusterError) -> None:
    ports = PlayedPorts(of_coordinator=answer)
    assert with_live_progress(ports, [TRAINING], NOW) == ([TRAINING], set())


def test_a_job_that_counts_samples_has_a_live_rate_of_samples() -> None:
    ports = PlayedPorts(METRICS.replace("tokens", "samples").replace("NaN", "48.5"))
    (job,), _live = with_live_progress(ports, [TRAINING], NOW)
    progress = job.status.progress
    assert (progress.samples_per_second, progress.tokens_per_second) == (48.5, None)


@pytest.mark.parametrize(
    "answer",
    [
        ClusterError("forbidden", 403),
        "",
        "<html>",
        f"trainingjob_step{LABELS} inf\n",
        f"trainingjob_step{LABELS} x\n",
    ],
)
def test_what_cannot_be_read_leaves_the_status(answer: str | ClusterError) -> None:
    (job,), live = with_live_progress(PlayedPorts(answer), [TRAINING], NOW)
    assert (job, live) == (TRAINING, set())


@pytest.mark.parametrize(
    "job",
    [
        job_record(running_status(phase="Recovering")),
        job_record(running_status(workers=[])),
        job_record(running_status(), launcher="torchrun"),
        job_record(),
    ],
)
def test_a_job_without_metrics_is_not_asked(job: JobRecord) -> None:
    ports = PlayedPorts()
    assert with_live_progress(ports, [job], NOW) == ([job], set())
    assert ports.asked == []


def test_without_jobs_nobody_is_asked() -> None:
    assert with_live_progress(PlayedPorts(), [], NOW) == ([], set())


STEPS = '{"workers":[{"index":0,"step":131},{"index":2,"step":130}]}'


def test_the_coordinator_says_how_far_each_worker_is() -> None:
    ports = PlayedPorts(of_coordinator=STEPS)
    assert live_steps(ports, TRAINING) == LiveSteps({0: 131, 2: 130})
    assert ports.asked == [("team", "gpt-c3", 8471, "/steps")]


@pytest.mark.parametrize("answer", [ClusterError("it is away"), "<html>", '{"workers":[{}]}'])
def test_steps_that_cannot_be_had_are_left_out(answer: str | ClusterError) -> None:
    assert live_steps(PlayedPorts(of_coordinator=answer), TRAINING) == LiveSteps()


def test_the_right_that_is_missing_for_steps_is_named() -> None:
    refused = ClusterError("cannot open pods/portforward gpt-c3: ask for it", 403)
    steps = live_steps(PlayedPorts(of_coordinator=refused), TRAINING)
    assert steps == LiveSteps(refusal=str(refused))


@pytest.mark.parametrize("status", [{"coordinatorTerm": 0}, {"phase": "Suspended"}])
def test_a_job_without_a_coordinator_is_not_asked_for_steps(status: dict[str, object]) -> None:
    ports = PlayedPorts(of_coordinator=STEPS)
    job = job_record(running_status(**{"coordinatorTerm": 3, **status}))
    assert live_steps(ports, job) == LiveSteps()
    assert ports.asked == []


def series(*points: tuple[int, float]) -> str:
    """What a coordinator has kept of these steps, each made so many seconds ago."""
    now = NOW.timestamp()
    kept = tuple(SeriesPoint(time=now - ago, step=step, world_size=3) for step, ago in points)
    return Series(points=kept).model_dump_json()


def speed_at_first_look(answer: str | ClusterError, job: JobRecord = TRAINING) -> float | None:
    """What one look shows, at the step 131 that the worker with rank 0 says."""
    marks = kept_marks(PlayedPorts(of_coordinator=answer), [job])
    jobs, live = with_live_progress(PlayedPorts(), [job], NOW)
    (row,) = top_rows(jobs, recent_marks(jobs, marks), live)
    return row.steps_per_second


def test_one_look_has_a_speed_by_the_coordinators_series() -> None:
    ports = PlayedPorts(of_coordinator=series((10, 900.0), (71, 20.5), (91, 10.5)))
    assert kept_marks(ports, [TRAINING])
    assert ports.asked == [("team", "gpt-c3", 8471, "/series")]
    assert speed_at_first_look(series((71, 40.0), (111, 20.0), (121, 5.0))) == 1.5
    assert speed_at_first_look(series((131, 40.0), (131, 20.0))) == 0.0, "it hangs"


@pytest.mark.parametrize("answer", [ClusterError("forbidden", 403), "<html>", series()])
def test_a_series_that_cannot_be_had_leaves_the_speed_unknown(answer: str | ClusterError) -> None:
    assert speed_at_first_look(answer) is None


def test_steps_from_before_a_pause_are_no_part_of_the_speed() -> None:
    ready = condition("Ready", "True", "Training", "workers training: 3", 12)
    resumed = job_record(running_status(coordinatorTerm=3, conditions=[ready]))
    assert speed_at_first_look(series((100, 3600.0), (111, 10.0)), resumed) == 2.0


def test_a_series_is_asked_only_of_a_job_that_trains_and_reports_no_speed() -> None:
    ports = PlayedPorts(of_coordinator=series((131, 1.0)))
    progress = {**running_status()["progress"], "stepsPerSecond": 7.5}
    script = job_record(running_status(progress=progress))
    assert kept_marks(ports, [script, job_record(running_status(phase="Suspended"))]) == {}
    assert ports.asked == []
