"""The jobs of a cluster on the page: what is asked for, and what a user may not read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, cast

import pytest

from regroup.diagnosis.kept_series import KeptCourse
from regroup.kubernetes.cluster_api import ClusterApi, LogQuery
from regroup.kubernetes.cluster_errors import FORBIDDEN, ClusterError
from regroup.kubernetes.pod_channels import CommandOutput
from regroup.web_page.cluster_source import MOST_KEPT, READS_VOLUME, ClusterSource
from regroup.web_page.job_source import NoSuchJobError, SourceError
from regroup.web_page.page_server import STATIC
from regroup_operator.api.resource import Object
from regroup_trainer.protocol.job_status import STEPS_PATH, Series, SeriesPoint
from tests.support.cluster_objects import NOW, event_object, job_object, pod_object, running_status

SAVED = '[{"step": 100, "path": "/data/step-100", "sizeBytes": 5}, {"step": 50, "path": "/data"}]'


class Api:
    """What ClusterApi answers about a job `gpt` with three workers."""

    def __init__(self, **status: Any) -> None:
        self.status = running_status(**status)
        self.refused: set[str] = set()
        self.series = Series(points=(SeriesPoint(time=1.0, step=1, world_size=3),))
        self.roles = {"gpt-c1": "coordinator", **{f"gpt-w{n}-1": "worker" for n in range(3)}}
        self.read: list[str] = []
        self.metrics = ""
        self.listed = CommandOutput(SAVED, "", 0)

    def now(self) -> datetime:
        return NOW

    def jobs(self, namespace: str | None) -> list[Object]:
        return [job_object(self.status)]

    def job(self, namespace: str, name: str) -> Object:
        return job_object(self.status, name=name)

    def pods(self, namespace: str, job: str) -> list[Object]:
        self._refuse("pods")
        return [pod_object(name, role=role) for name, role in self.roles.items()]

    def events(self, namespace: str, selector: str) -> list[Object]:
        self._refuse("events")
        return [event_object("WorkerLost", "it is lost")]

    def get_of_pod(self, namespace: str, pod: str, port: int, path: str, seconds: float) -> str:
        self._refuse("series")
        if path == "/metrics":
            return self.metrics
        if path == STEPS_PATH:
            return '{"workers": [{"index": 1, "step": 131}]}'
        return self.series.model_dump_json()

    def run_in_pod(
        self, namespace: str, pod: object, words: object, seconds: float
    ) -> CommandOutput:
        self._refuse("exec")
        return self.listed

    def log(self, namespace: str, pod: str, container: str, query: LogQuery) -> Iterator[str]:
        self._refuse("logs")
        self.read.append(pod)
        number = int(pod.split("-")[1][1:])
        yield from (f"rank {number}: \x1b[1m{n}" for n in range(query.tail_lines or 9999))

    def _refuse(self, what: str) -> None:
        if what in self.refused:
            raise ClusterError(f"you may not read {what}", FORBIDDEN)


def source(api: Api, namespace: str | None = "team") -> ClusterSource:
    return ClusterSource(cast(ClusterApi, api), namespace)


def test_jobs_are_known_by_namespace_and_name() -> None:
    assert [*source(Api()).jobs()] == ["team/gpt"]
    assert source(Api(), None).title == "TrainingJobs in all namespaces"


def test_a_job_is_shown_with_the_ranks_of_its_workers_and_stragglers() -> None:
    slow = [{"rank": 1, "node": "n2", "percent": 40}]
    view = source(Api(stragglers=slow, replicas=70)).view("team/gpt")
    assert [row.ranks for row in view.workers] == ["0", "1", "2"]
    assert view.workers[1].note == "rank 1: 40% slower than the others"
    assert view.workers_left_out == 67
    assert view.events[0].reason == "WorkerLost"


def test_workers_have_the_steps_that_the_coordinator_knows() -> None:
    api = Api(coordinatorTerm=1)
    view = source(api).view("team/gpt")
    assert ([row.step for row in view.workers], view.workers_note) == ([None, 131, None], "")
    api.refused = {"series"}  # who may read jobs may not always reach pods
    view = source(api).view("team/gpt")
    assert [row.step for row in view.workers] == [None] * 3
    assert view.workers_note == "their steps are not shown: you may not read series"


def test_a_status_with_absurd_numbers_is_shown_all_the_same() -> None:
    slow = [{"rank": 2, "node": "n2", "percent": 40}]
    view = source(Api(stragglers=slow, worldSize=2**31 - 1, readyReplicas=1)).view("team/gpt")
    assert view.workers[0].note == "rank 2: 40% slower than the others"


def test_the_step_of_a_job_that_trains_is_that_of_this_second() -> None:
    api = Api()
    view = source(api).view("team/gpt")
    assert view.record.status.progress.step == 120, "nobody answers: that of the status"
    values = {"step": 131, "loss": 2.5, "world_size": 3}
    api.metrics = "".join(f'trainingjob_{name}{{x="y"}} {n}\n' for name, n in values.items())
    progress = source(api).view("team/gpt").record.status.progress
    assert (progress.step, progress.loss, progress.total_steps) == (131, 2.5, 500)


def test_workers_with_several_ranks() -> None:
    workers = [{"index": n, "pod": f"w{n}", "state": "Training", "rank": 8 * n} for n in range(3)]
    view = source(Api(worldSize=24, workers=workers)).view("team/gpt")
    assert [row.ranks for row in view.workers] == ["0-7", "8-15", "16-23"]


def test_who_may_not_read_events_sees_the_job_and_why() -> None:
    api = Api()
    api.refused = {"events"}
    (event,) = source(api).view("team/gpt").events
    assert event.message == "you may not read events"


@pytest.mark.parametrize(
    "name", ["", "gpt", "other/gpt", "team/../secrets", "team/gpt/log", "team/GPT", "team/gpt?a=b"]
)
def test_a_name_that_is_none_of_the_jobs_is_not_asked_for(name: str) -> None:
    with pytest.raises(NoSuchJobError):
        source(Api()).view(name)


def test_series_come_from_the_coordinator_if_one_runs() -> None:
    api = Api()
    assert source(api).series("team/gpt") == api.series.points
    api.roles = {}
    assert source(api).series("team/gpt") == ()


def resting(monkeypatch: pytest.MonkeyPatch, **status: Any) -> tuple[Api, list[str]]:
    """A job without pods, and the jobs whose volumes were read."""
    api, read = Api(**{"phase": "Succeeded", **status}), list[str]()
    api.roles = {}

    def kept_course(
        _api: object, namespace: str, name: str, *, with_checkpoints: bool
    ) -> KeptCourse:
        read.append(f"{namespace}/{name}")
        return KeptCourse(api.series.model_dump_json(), api.listed if with_checkpoints else None)

    monkeypatch.setattr("regroup.web_page.cluster_source.kept_course", kept_course)
    return api, read


def test_the_series_of_a_job_that_rests_is_read_once_and_only_when_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, read = resting(monkeypatch)
    page = source(api)
    assert page.view("team/gpt").may_have_kept_series
    assert (page.series("team/gpt"), read) == ((), [])
    for _ in range(2):
        assert page.kept_series("team/gpt") == api.series.points
        assert page.series("team/gpt") == api.series.points
    assert read == ["team/gpt"]


def test_all_checkpoints_of_a_job_that_rests_are_known_once_its_volume_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, _ = resting(monkeypatch)
    page = source(api)
    before = page.checkpoints("team/gpt")
    assert [one.step for one in before.saved] == [100]
    assert before.note.endswith(f'"{READS_VOLUME}" lists them')
    page.kept_series("team/gpt")
    assert [one.step for one in page.checkpoints("team/gpt").saved] == [100, 50]
    assert page.checkpoints("team/gpt").note == ""
    api.status["phase"] = "Running"
    assert [one.step for one in page.checkpoints("team/gpt").saved] == [100]


def test_the_button_that_a_note_names_is_on_the_page() -> None:
    assert f">{READS_VOLUME}</button>" in (STATIC / "page.html").read_text()


def test_a_series_from_before_the_job_trained_on_is_read_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, read = resting(monkeypatch, phase="Suspended")
    page = source(api)
    page.kept_series("team/gpt")
    api.status["progress"] = {"step": 400}
    assert page.series("team/gpt") == ()
    page.kept_series("team/gpt")
    assert len(read) == 2


def test_many_series_are_not_all_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    api, read = resting(monkeypatch)
    page = source(api)
    for n in (*range(MOST_KEPT + 1), 0):
        page.kept_series(f"team/gpt-{n}")
    assert len(read) == MOST_KEPT + 2


@pytest.mark.parametrize("status", [{"phase": "Running"}, {"progress": {"step": 0}}])
def test_a_job_that_has_left_no_series_gets_no_pod(
    monkeypatch: pytest.MonkeyPatch, status: dict[str, Any]
) -> None:
    api, read = resting(monkeypatch, **status)
    assert not source(api).view("team/gpt").may_have_kept_series
    with pytest.raises(SourceError, match="job gpt trains, or has not trained yet"):
        source(api).kept_series("team/gpt")
    assert read == []


def test_a_series_that_cannot_be_read_is_said() -> None:
    class Old(Api):
        def get_of_pod(self, *_: object) -> str:
            return "<html>"

    with pytest.raises(SourceError, match="series"):
        source(Old()).series("team/gpt")


def listed(api: Api) -> tuple[list[int], str]:
    """The steps of the checkpoints that are shown, and the note."""
    found = source(api).checkpoints("team/gpt")
    return [saved.step for saved in found.saved], found.note


def test_checkpoints_are_listed_by_a_worker() -> None:
    assert listed(Api()) == ([100, 50], "")


@pytest.mark.parametrize("right", ["exec", "pods"])
def test_the_right_that_is_missing_for_all_checkpoints_is_named(right: str) -> None:
    api = Api()
    api.refused = {right}
    assert listed(api) == ([100], f"only the newest is shown: you may not read {right}")


def test_why_only_the_newest_checkpoint_is_shown_is_said() -> None:
    api = Api()
    api.listed = CommandOutput("<html>", "", 0)
    assert listed(api)[1].endswith("what a worker lists cannot be read: use its release")
    api.listed = CommandOutput("", "Error: no volume", 1)
    assert listed(api)[1].endswith("pod gpt-w2-1 cannot list them: no volume")
    api.roles = {}
    why = "only the newest is shown: no worker runs that could list the others"
    assert listed(api) == ([100], why)


def test_a_job_without_a_checkpoint_has_nothing_to_note() -> None:
    assert listed(Api(checkpoint={})) == ([], "")


def test_logs_are_shared_between_the_workers_or_one_ranks() -> None:
    api = Api()
    lines = source(api).logs("team/gpt", None).lines
    assert len(lines) == 3 * 166
    assert lines[0] == "rank 0: 0"
    api.read.clear()
    assert {line[:8] for line in source(api).logs("team/gpt", 2).lines} == {"rank 2: "}
    assert api.read == ["gpt-w2-1"]


def test_logs_that_may_not_be_read_are_noted() -> None:
    api = Api()
    api.refused = {"logs"}
    tail = source(api).logs("team/gpt", 1)
    assert (tail.lines, tail.note) == ([], "gpt-w1-1: you may not read logs")


def test_a_job_with_many_pods_shows_the_logs_of_some() -> None:
    api = Api()
    api.roles = {f"gpt-w{n}-1": "worker" for n in range(40)}
    assert "24 of 40 pods are left out" in source(api).logs("team/gpt", None).note
    assert len(api.read) == 16
