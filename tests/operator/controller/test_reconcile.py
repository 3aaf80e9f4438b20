"""The reconciler's own memory, beside an API server that refuses nothing."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest

from regroup_operator.api.resource import Key
from regroup_operator.api.status import Phase, TrainingJobStatus
from regroup_operator.controller import job_events, reconcile
from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.coordination import Coordinators
from regroup_operator.controller.event_limit import BURST, EventLimit
from regroup_operator.controller.executor import Executor
from regroup_operator.controller.followed_coordinator import Target
from regroup_operator.controller.job_events import EventWriter
from regroup_operator.controller.node_watch import NodeWatch
from regroup_operator.controller.operator_metrics import JobSeries, internal_errors
from regroup_operator.controller.operator_traces import OperatorTraces, Round
from regroup_operator.controller.reconcile import CONFLICT_SECONDS, MOST_WRITES
from regroup_operator.controller.work_queue import FIRST_PAUSE_SECONDS
from regroup_operator.decide.coordinator_projection import event_fields
from regroup_operator.decide.plan import CreateWorker, Event, Plan
from regroup_operator.errors import (
    ClusterError,
    ConflictError,
    CoordinatorError,
    UnreadableError,
    UnreadableObjectError,
)
from regroup_operator.informer.job_pods import JobPods, SeenPod
from regroup_operator.informer.remembered_objects import RememberedObjects
from regroup_operator.informer.request_metrics import unreadable
from regroup_operator.observe.kubernetes_objects import read_job
from regroup_operator.observe.observed import AnyJob, CoordinatorView, Identity, Observed
from regroup_trainer.protocol.job_status import MemberStatus
from regroup_trainer.system.log_lines import Subject
from tests.support.job_memory import (
    NOWHERE,
    UNWATCHED,
    make_job_watch,
    make_memory,
    make_pod_watch,
)
from tests.support.operator_simulation import make_coordinator_status, make_event, make_spec
from tests.support.rendering import KEYS, SETTINGS

Json = dict[str, Any]


class Server(Cluster):
    """One job, and the events about it."""

    connection = NOWHERE

    def __init__(self, document: Json | UnreadableError) -> None:
        self.document = document
        self.events: list[Json] = []
        self.statuses: list[tuple[Json, Identity]] = []

    async def job(self, *_: Any) -> Json:
        if isinstance(self.document, UnreadableError):
            raise self.document
        return self.document

    async def pods(self, *_: Any) -> tuple[list[Any], str]:
        return [], "1"

    async def service(self, *_: Any) -> None:
        return None

    async def disruption_budget(self, *_: Any) -> None:
        return None

    async def change_status(self, _ns: str, _name: str, status: Json, present: Identity) -> Json:
        self.statuses.append((status, present))
        assert isinstance(self.document, dict)
        return {**self.document, "status": status}

    async def create_event(self, document: Json) -> None:
        self.events.append(document)


def make_document(field: str, version: int = 7) -> Json:
    """A job whose spec has an unknown field."""
    metadata = {"namespace": "a", "name": "gpt", "uid": "uid-1", "generation": 1}
    metadata["resourceVersion"] = str(version)
    return {"metadata": metadata, "spec": {"replicas": 1, field: 1}}


def in_next_version(document: Json) -> Json:
    """As the API server has it after a write."""
    metadata = document["metadata"]
    version = str(int(metadata["resourceVersion"]) + 1)
    return {**document, "metadata": {**metadata, "resourceVersion": version}}


@asynccontextmanager
async def reconciler_of(
    server: Server,
    pods: JobPods = UNWATCHED,
    jobs: RememberedObjects | None = None,
    traces: OperatorTraces | None = None,
) -> AsyncIterator[reconcile.Reconciler]:
    """A reconciler beside this server."""
    async with aiohttp.ClientSession() as session:
        coordinators = Coordinators(session, lambda _key: None)
        nodes = NodeWatch(server, None)
        memory = replace(make_memory(server), pods=pods)
        memory = replace(memory, jobs=jobs or memory.jobs)
        executor = Executor(server, memory, coordinators, SETTINGS, KEYS, traces)
        yield reconcile.Reconciler(server, coordinators, executor, nodes, SETTINGS, JobSeries())


async def test_events_that_exist_are_remembered_and_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_events, "EVENTS_REMEMBERED", 3)
    server = Server(make_document("first"))
    async with reconciler_of(server) as reconciler:
        versions = itertools.count(7)

        async def events_about(field: str) -> int:
            server.document = make_document(field, next(versions))
            server.events.clear()
            await reconciler.reconcile(("a", "gpt"))
            return len(server.events)

        assert await events_about("first") == 1
        assert await events_about("first") == 0
        for number in range(3):
            assert await events_about(f"other{number}") == 1
        assert await events_about("first") == 1, "its name was forgotten for newer ones"


class PlainServer(Server):
    """One job, its statuses as they are written, and the pods that are made."""

    def __init__(self, document: Json) -> None:
        super().__init__(document)
        self.stored = document
        self.made: list[str] = []

    async def job(self, *_: Any) -> Json:
        return self.stored

    async def network_policy(self, *_: Any) -> None:
        return None

    async def claim(self, namespace: str, name: str) -> Json:
        return {
            "metadata": {"name": name, "namespace": namespace},
            "kind": "PersistentVolumeClaim",
            "spec": {"accessModes": ["ReadWriteMany"]},
        }

    async def change_status(self, _ns: str, _name: str, status: Json, present: Identity) -> Json:
        await super().change_status(_ns, _name, status, present)
        self.stored = in_next_version({**self.stored, "status": status})
        return self.stored

    async def create_pod(self, document: Json) -> Json:
        self.made.append(document["metadata"]["name"])
        return {}

    async def create_secret(self, document: Json) -> None:
        """The Secret with the token is of no interest here."""

    async def create_service(self, document: Json) -> Json:
        metadata = {**document["metadata"], "uid": "uid-1", "resourceVersion": "12"}
        return {**document, "metadata": metadata}

    create_network_policy = create_disruption_budget = create_service


def waiting_reasons(reconciler: reconcile.Reconciler) -> list[str]:
    """What the series of the jobs say that they wait for."""
    families = {family.name: family for family in reconciler._series.collect()}
    return [sample.labels["reason"] for sample in families["trainingjob_waiting"].samples]


class Rounds(OperatorTraces):
    """What it receives of rounds."""

    def __init__(self) -> None:
        super().__init__(lambda _spans: None)
        self.seen: list[Round] = []

    def note(self, seen: Round) -> None:
        self.seen.append(seen)


async def test_traces_are_made_of_what_a_round_saw_and_did_not_of_what_was_refused() -> None:
    class Refuses(PlainServer):
        async def create_pod(self, document: Json) -> Json:
            if "-w1-" in document["metadata"]["name"]:
                raise ClusterError("POST", "pods", 403, "no")
            return await super().create_pod(document)

    metadata = {**make_document("")["metadata"], "generation": 4}
    server, rounds = Refuses({"metadata": metadata, "spec": make_spec()}), Rounds()
    async with reconciler_of(server, traces=rounds) as reconciler:
        for _ in range(3):
            await reconciler.reconcile(("a", "gpt"))
    assert all(seen.began <= seen.ended for seen in rounds.seen)
    made = {
        action.index
        for seen in rounds.seen
        for action in seen.done
        if isinstance(action, CreateWorker)
    }
    assert made == {0, 2}
    assert rounds.seen[-1].job.status.coordinator_term >= 1


async def test_what_a_round_logs_is_about_its_job_and_the_generation_of_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Refuses(PlainServer):
        async def create_pod(self, document: Json) -> Json:
            raise ClusterError("POST", "pods", 403, "no")

    subjects: list[Subject] = []

    class Notes(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            subjects.append(reconcile.round_subject.get())
            return True

    metadata = {**make_document("")["metadata"], "generation": 4}
    status = {"rendezvousGeneration": "1.2"}
    server = Refuses({"metadata": metadata, "spec": make_spec(), "status": status})
    with caplog.filtering(Notes()):
        async with reconciler_of(server) as reconciler:
            for _ in range(3):
                await reconciler.reconcile(("a", "gpt"))
        assert set(subjects) == {Subject("a", "gpt", "1.2")}
        subjects.clear()
        unread = Server(UnreadableError("GET", "/jobs/other", 0, "it is too large"))
        async with reconciler_of(unread) as reconciler:
            await reconciler.reconcile(("a", "other"))
        assert set(subjects) == {Subject("a", "other")}, "nothing is left of the round before"


async def test_an_unknown_error_is_shown_once_and_uses_up_no_term(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> Json:
        raise ZeroDivisionError("by zero")

    metadata = {**make_document("")["metadata"], "generation": 4}
    server = PlainServer({"metadata": metadata, "spec": make_spec(networkPolicy="None")})
    errors = internal_errors._value.get()
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
        terms = server.stored["status"].get("coordinatorTerm", 0)
        with monkeypatch.context() as patched:
            patched.setattr("regroup_operator.render.workload.coordinator_pod", fails)
            patched.setattr("regroup_operator.render.workload.worker_pod", fails)
            server.made.clear()
            for _ in range(3):
                with pytest.raises(ZeroDivisionError):
                    await reconciler.reconcile(("a", "gpt"))
        status = server.stored["status"]
        ready = next(c for c in status["conditions"] if c["type"] == "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "InternalError")
        assert "ZeroDivisionError: by zero" in status["message"] == ready["message"]
        assert status["observedGeneration"] == ready["observedGeneration"] == 4
        assert status.get("coordinatorTerm", 0) == terms
        assert server.made == []
        assert len([text for text in server.events if "ZeroDivisionError" in text["message"]]) == 1
        assert internal_errors._value.get() == errors + 3
        assert waiting_reasons(reconciler) == ["InternalError"]
        await reconciler.reconcile(("a", "gpt"))
        assert waiting_reasons(reconciler) != ["InternalError"]
        assert "ZeroDivisionError" not in server.stored["status"]["message"]
        assert server.made, "the job goes on once the error is gone"


async def test_an_unknown_error_is_an_event_also_where_the_status_is_refused() -> None:
    class Refuses(Server):
        async def change_status(self, *_: Any) -> Json:
            raise ClusterError("PATCH", "/jobs/gpt/status", 403, "no such right")

        async def pods(self, *_: Any) -> tuple[list[Any], str]:
            raise ZeroDivisionError("by zero")

    server = Refuses(make_document("first"))
    async with reconciler_of(server) as reconciler:
        reconciler._doubtful.add(("a", "gpt"))  # so that the pods are listed
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await reconciler.reconcile(("a", "gpt"))
    (event,) = server.events
    assert event["reason"] == "InternalError"
    assert "ZeroDivisionError: by zero" in event["message"]


async def test_max_replicas_of_a_started_job_gives_its_coordinator_no_larger_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allowed: list[int] = []
    monkeypatch.setattr(Coordinators, "follow", lambda *given: allowed.append(given[-2]))
    elastic = {"minReplicas": 1, "maxReplicas": 1_000_000}
    status = {"startTime": "2025-12-31T00:00:00Z"}
    document = {**make_document(""), "spec": make_spec(elasticPolicy=elastic), "status": status}
    async with reconciler_of(PlainServer(document)) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
    assert allowed == [SETTINGS.max_workers]


async def test_a_template_that_no_pod_can_be_made_of_is_refused_before_anything_exists() -> None:
    metadata = {**make_document("")["metadata"], "generation": 4}
    spec = make_spec(resources={"limits": {"cpu": "banana"}})
    server = PlainServer({"metadata": metadata, "spec": spec})
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
    status = server.stored["status"]
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "InvalidSpec"
    assert "spec.resources.limits[cpu]" in ready["message"]
    assert server.made == []


async def test_the_status_alone_is_written_over_the_object_that_was_read() -> None:
    server = Server(make_document("first"))
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
    ((status, present),) = server.statuses
    assert present == Identity("uid-1", "7")
    assert "spec" not in status
    assert status["observedGeneration"] == 1


async def test_the_message_shows_at_once_what_is_wrong_and_steps_alone_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = make_document("first")
    server = Server(document)
    async with reconciler_of(server) as reconciler:

        async def written(message: str, hindrance: str | None) -> bool:
            nonlocal document
            status = TrainingJobStatus(phase="Running", message=message)
            monkeypatch.setattr(
                reconcile, "plan", lambda *_: Plan(status, requeue_after=1.0, hindrance=hindrance)
            )
            before = len(server.statuses)
            await reconciler.reconcile(("a", "gpt"))
            if len(server.statuses) > before:
                document = in_next_version({**document, "status": server.statuses[-1][0]})
                server.document = document
            return len(server.statuses) > before

        assert await written("step 1", None)
        assert not await written("step 2", None)
        assert await written("step 3; no answer: it takes too long", "CoordinatorUnreachable")
        assert not await written("step 3; no answer: refused", "CoordinatorUnreachable")
        assert await written("step 4", None)
        assert not await written("step 5", None)


class ClaimServer(PlainServer):
    """It counts how often it is asked for the claim."""

    claims = 0

    async def claim(self, namespace: str, name: str) -> Json:
        self.claims += 1
        return await super().claim(namespace, name)


async def test_what_is_made_for_a_job_that_trains_rests_on_its_claim_as_it_is_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = TrainingJobStatus(phase="Running", observed_generation=4)
    plans = [Plan(status, requeue_after=600.0), Plan(status, (CreateWorker(0, 1, ()),))]
    monkeypatch.setattr(reconcile, "plan", lambda *_: plans[0])
    metadata = {**make_document("")["metadata"], "generation": 4}
    server = ClaimServer({"metadata": metadata, "spec": make_spec()})
    async with reconciler_of(server) as reconciler:
        for _ in range(3):
            await reconciler.reconcile(("a", "gpt"))
        assert server.claims == 1
        monkeypatch.setattr(reconcile, "plan", lambda *_: plans[1])
        await reconciler.reconcile(("a", "gpt"))
    assert server.claims == 2


async def test_a_round_of_a_job_that_trains_on_reads_neither_its_claim_nor_its_spec_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = TrainingJobStatus(phase="Running", observed_generation=4)
    monkeypatch.setattr(reconcile, "plan", lambda *_: Plan(status, requeue_after=600.0))
    reads = 0

    def counted(*arguments: Any) -> AnyJob:
        nonlocal reads
        reads += 1
        return read_job(*arguments)

    monkeypatch.setattr(reconcile, "read_job", counted)
    metadata = {**make_document("")["metadata"], "generation": 4}
    server = ClaimServer({"metadata": metadata, "spec": make_spec()})
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
        assert (server.claims, reads) == (1, 1)
        for _ in range(5):
            await reconciler.reconcile(("a", "gpt"))
        assert (server.claims, reads) == (1, 2), "once more after the status was written"
        server.stored["metadata"] = {**server.stored["metadata"], "generation": 5}
        server.stored = in_next_version(server.stored)
        await reconciler.reconcile(("a", "gpt"))
        assert (server.claims, reads) == (2, 3)


@pytest.mark.parametrize(
    ("phase", "a_second", "pause"),
    [("Running", 4.0, 40.0), ("Running", 0.02, 50.0), ("Pending", 0.02, 30.0)],
)
async def test_many_jobs_that_train_are_looked_at_less_often(
    phase: Phase, a_second: float, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "STEADY_ROUNDS_A_SECOND", a_second)
    status = TrainingJobStatus(phase=phase, observed_generation=1)
    monkeypatch.setattr(reconcile, "plan", lambda *_: Plan(status, requeue_after=120.0))
    async with reconciler_of(Server(make_document("first"))) as reconciler:
        assert await reconciler.reconcile(("a", "gpt")) == pause


async def test_jobs_that_have_ended_do_not_delay_rounds_of_those_that_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconcile, "STEADY_ROUNDS_A_SECOND", 0.02)
    ended = TrainingJobStatus(phase="Succeeded", completion_time="2026-01-01T00:00:00Z")
    trains = TrainingJobStatus(phase="Running", observed_generation=1)
    plans = iter([Plan(trains)] * 2 + [Plan(ended)] * 2 + [Plan(trains, requeue_after=120.0)])
    monkeypatch.setattr(reconcile, "plan", lambda *_: next(plans))
    async with reconciler_of(Server(make_document("first"))) as reconciler:
        for name in ("gpt1", "gpt2", "gpt1", "gpt2"):
            await reconciler.reconcile(("a", name))
        assert await reconciler.reconcile(("a", "gpt")) == 50.0


class ContestedServer(Server):
    """Somebody changes the job each time before its status is written."""

    is_contested = True

    async def change_status(self, *arguments: Any) -> Json:
        answer = await super().change_status(*arguments)
        if self.is_contested:
            raise ConflictError("PATCH", "/jobs/gpt/status", 409, "it has changed")
        return answer


async def test_a_status_that_is_refused_is_written_again_soon_and_then_with_a_back_off() -> None:
    server = ContestedServer(make_document("first"))
    async with reconciler_of(server) as reconciler:
        assert await reconciler.reconcile(("a", "gpt")) == CONFLICT_SECONDS
        with pytest.raises(ConflictError):
            await reconciler.reconcile(("a", "gpt"))
        assert len(server.statuses) == 2
        server.is_contested = False
        assert await reconciler.reconcile(("a", "gpt")) != CONFLICT_SECONDS
        server.is_contested = True
        again = await reconciler.reconcile(("a", "gpt"))
        assert again == CONFLICT_SECONDS, "once does not count for ever"


class AnnotatedServer(Server):
    """Somebody sets another annotation of the job each time before its status is written."""

    left = 0
    """How many times more."""

    async def change_status(self, _ns: str, _name: str, status: Json, present: Identity) -> Json:
        assert isinstance(self.document, dict)
        if self.left:
            self.left -= 1
            self.document = in_next_version(self.document)
            self.document["metadata"]["annotations"] = {"seen": str(self.left)}
        if present.version != self.document["metadata"]["resourceVersion"]:
            raise ConflictError("PATCH", "/jobs/gpt/status", 409, "it has changed")
        return await super().change_status(_ns, _name, status, present)


async def test_an_annotation_that_changes_all_the_time_keeps_no_status_from_being_written() -> None:
    server = AnnotatedServer(make_document("first"))
    async with reconciler_of(server) as reconciler:
        server.left = MOST_WRITES - 1
        assert await reconciler.reconcile(("a", "gpt")) != CONFLICT_SECONDS
        assert len(server.statuses) == 1
        server.document = make_document("second", version=20)
        server.left = MOST_WRITES
        assert await reconciler.reconcile(("a", "gpt")) == CONFLICT_SECONDS, "not for ever"


async def test_a_job_that_cannot_be_read_is_named_once_and_read_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problem = "cannot read the answer: it has more than 4194304 bytes"
    server = Server(UnreadableError("GET", "/jobs/gpt", 0, problem))
    counted = unreadable.labels(name="trainingjobs")._value.get()
    async with reconciler_of(server) as reconciler:
        for _ in range(2):
            assert await reconciler.reconcile(("a", "gpt")) == reconcile.UNREADABLE_SECONDS
    (event,) = server.events
    assert event["involvedObject"]["name"] == "gpt"
    assert event["reason"] == "Unreadable"
    assert problem in event["message"]
    assert "a/gpt: skipped" in caplog.text
    assert unreadable.labels(name="trainingjobs")._value.get() == counted + 2


async def test_a_status_that_is_refused_is_named_once_an_hour_unless_one_was_written_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refuses(Server):
        status = 403

        async def change_status(self, *_: Any) -> Json:
            raise ClusterError("PATCH", "/jobs/gpt/status", self.status, "no such right")

    server = Refuses(make_document("first"))
    async with reconciler_of(server) as reconciler:
        for hour in (1, 1, 2):
            monkeypatch.setattr(
                reconcile, "_now", lambda hour=hour: datetime(2026, 11, 28, hour, tzinfo=UTC)
            )
            with pytest.raises(ClusterError):
                await reconciler.reconcile(("a", "gpt"))
        server.document = {**make_document("first"), "status": {"message": "written since"}}
        with pytest.raises(ClusterError):
            await reconciler.reconcile(("a", "gpt"))
        server.status = 503
        monkeypatch.setattr(reconcile, "_now", lambda: datetime(2026, 11, 28, 3, tzinfo=UTC))
        with pytest.raises(ClusterError):
            await reconciler.reconcile(("a", "gpt"))
    assert [event["reason"] for event in server.events] == 3 * ["StatusRefused"]
    assert "PATCH /jobs/gpt/status: 403 no such right" in server.events[0]["message"]


async def test_a_coordinator_gets_no_more_events_made_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(make_document("first"))
    numbers = itertools.count()

    def view(*_: Any) -> CoordinatorView:
        fresh = [next(numbers) for _ in range(50)]
        events = tuple(make_event(n) for n in fresh)
        return CoordinatorView(make_coordinator_status(events=events))

    monkeypatch.setattr(Coordinators, "view", view)
    async with reconciler_of(server) as reconciler:
        for _ in range(7):
            await reconciler.reconcile(("a", "gpt"))
    assert BURST <= len(server.events) <= BURST + 5, "some seconds may have passed"


async def test_no_reason_of_a_coordinator_leads_an_event_to_another_name_or_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(make_document("first"))
    reasons = ("../../victim/events/x", "a\nb", "%2e%2e", "é" * 253)
    events = tuple(make_event(n, reason) for n, reason in enumerate(reasons, 1))
    view = CoordinatorView(make_coordinator_status(events=events))
    monkeypatch.setattr(Coordinators, "view", lambda *_: view)
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
    made = [event["metadata"] for event in server.events if event["reason"] in reasons]
    assert len({one["name"] for one in made}) == len(reasons)
    for one in made:
        assert one["namespace"] == "a"
        assert re.fullmatch(r"gpt\.[0-9a-f]{16}", one["name"])


async def test_what_exists_of_a_coordinators_events_is_not_made_again_by_the_next_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps fifty: a thousand jobs would have as many made in their first rounds."""
    server = PlainServer(make_document(""))
    answer = make_coordinator_status(events=tuple(make_event(n) for n in range(1, 51)))
    target = Target("uid-c", "198.19.0.9", 1, "secret")
    status = TrainingJobStatus(phase="Running", observed_generation=1, coordinator_term=1)

    def planned(job: AnyJob, observed: Observed, _now: Any) -> Plan:
        return Plan(job.status.model_copy(update=event_fields(observed.coordinator)), follow=True)

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(reconcile, "plan", planned)
    monkeypatch.setattr(reconcile, "THROTTLED", frozenset())  # the time for a write has come
    monkeypatch.setattr(Executor, "target", lambda *_: target)
    monkeypatch.setattr(Coordinators, "_watch", never)
    server.stored["status"] = status.model_dump(by_alias=True, mode="json", exclude_none=True)
    made = []
    for _ in range(2):
        async with reconciler_of(server) as reconciler:
            reconciler._planned.add(("a", "gpt"))
            await reconciler.reconcile(("a", "gpt"))
            follower = reconciler._coordinators._followers["a", "gpt"]
            for _ in range(3):
                follower.answered(answer, 0.0)
                await reconciler.reconcile(("a", "gpt"))
            assert follower.status is not None
            assert not follower.status.events
        made.append(len(server.events))
    assert made == [50, 50]


async def test_a_refused_event_of_a_coordinator_is_made_later_and_before_those_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(make_document("first"))
    view = CoordinatorView(make_coordinator_status(events=(make_event(2), make_event(1))))
    monkeypatch.setattr(Coordinators, "view", lambda *_: view)
    monkeypatch.setattr(Coordinators, "note_emitted", lambda *given: noted.append(given[1:]))
    noted: list[Any] = []
    tried: list[str] = []
    refusal: ClusterError | None = ClusterError("POST", "/events", 403, "exceeded quota: few")

    async def create_event(document: Json) -> None:
        if document["reason"] == "Step":
            tried.append(document["message"])
            if refusal:
                raise refusal

    monkeypatch.setattr(server, "create_event", create_event)
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
        assert (tried, noted) == (["1"], [])
        refusal = None
        monkeypatch.setattr(EventLimit, "allows", lambda *_: True)
        await reconciler.reconcile(("a", "gpt"))
        assert (tried, [n for *_, n in noted]) == (["1", "1", "2"], [1, 2])


async def test_an_event_that_the_api_server_never_takes_holds_no_other_up() -> None:
    class Strict(Server):
        async def create_event(self, _document: Json) -> None:
            raise ClusterError("POST", "/events", 422, "message: too long")

    writer = EventWriter(Strict(make_document("first")))
    assert await writer.emit(("a", "gpt"), "uid-1", Event("Normal", "Step", "x", "1"))


class ForgetfulServer(PlainServer):
    """It refuses the first events."""

    refused = asked = 0

    async def create_event(self, document: Json) -> None:
        self.asked += 1
        if self.refused:
            self.refused -= 1
            raise ClusterError("POST", "/events", 403, "exceeded quota: count/events")
        await super().create_event(document)

    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.events]


def make_suspended() -> ForgetfulServer:
    """A job whose first round emits that it is suspended."""
    metadata = make_document("")["metadata"]
    return ForgetfulServer({"metadata": metadata, "spec": make_spec(suspend=True)})


async def test_an_event_is_made_once_although_the_operator_dies_before_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def dies(*_: Any) -> None:
        raise asyncio.CancelledError

    server = make_suspended()
    async with reconciler_of(server) as reconciler:
        with monkeypatch.context() as patched:
            patched.setattr(reconcile.Reconciler, "_execute", dies)
            with pytest.raises(asyncio.CancelledError):
                await reconciler.reconcile(("a", "gpt"))
    assert server.reasons() == []
    async with reconciler_of(server) as successor:
        for _ in range(3):
            await successor.reconcile(("a", "gpt"))
    assert server.reasons() == ["Suspended"]


async def test_what_a_job_that_trains_has_to_tell_again_waits_for_its_second_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new leader has a first round of each job, and most of these events exist."""
    server = make_suspended()
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
    server.events.clear()
    asked: list[int] = []
    trains = TrainingJobStatus.model_validate({**server.stored["status"], "phase": "Running"})
    monkeypatch.setattr(reconcile, "plan", lambda *_: Plan(trains, requeue_after=30.0))
    async with reconciler_of(server) as successor:
        for _ in range(3):
            await successor.reconcile(("a", "gpt"))
            asked.append(server.asked)
    assert server.reasons() == ["Suspended"]
    assert asked == [1, 2, 2]


async def test_an_event_that_was_refused_is_made_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(job_events, "EventLimit", lambda: EventLimit(lambda: now))
    server = make_suspended()
    server.refused = 1
    async with reconciler_of(server) as reconciler:
        pause = await reconciler.reconcile(("a", "gpt"))
        assert pause is not None
        assert 0 < pause <= FIRST_PAUSE_SECONDS
        assert await reconciler.reconcile(("a", "gpt")) == pause
        assert server.reasons() == []
        now = pause
        assert await reconciler.reconcile(("a", "gpt")) is None
    assert server.reasons() == ["Suspended"]


async def test_an_old_event_is_not_made_again_by_the_next_operator() -> None:
    server = make_suspended()
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
    server.stored["status"]["recentEvents"][0]["time"] = "2026-01-01T00:00:00Z"
    async with reconciler_of(server) as successor:
        await successor.reconcile(("a", "gpt"))
    assert server.reasons() == ["Suspended"]


class PodServer(PlainServer):
    """It keeps the pods that are made, and may lose the answers."""

    def __init__(self) -> None:
        metadata = make_document("")["metadata"]
        super().__init__({"metadata": metadata, "spec": make_spec(networkPolicy="None")})
        self.exists: list[Json] = []
        self.lists = 0
        self.loses_answers = False

    async def pods(self, *given: Any) -> tuple[list[Any], str]:
        read: Callable[[Json], SeenPod] = given[-1]
        self.lists += 1
        return [read(pod) for pod in self.exists], str(100 + len(self.exists))

    async def service(self, namespace: str, name: str) -> Any:
        owner = {"kind": "TrainingJob", "name": "gpt", "uid": "uid-1", "controller": True}
        metadata = {"name": name, "namespace": namespace, "ownerReferences": [owner]}
        metadata |= {"uid": "uid-s", "resourceVersion": "9"}
        spec = {"clusterIP": "198.19.0.1", "selector": {"regroup.dev/term": "1"}}
        return {"kind": "Service", "metadata": metadata, "spec": spec}

    async def change_service(self, document: Json, _present: Identity) -> Json:
        return await self.create_service(document)

    async def create_pod(self, document: Json) -> Json:
        await super().create_pod(document)
        identity = {"uid": f"uid-{len(self.made)}", "resourceVersion": str(100 + len(self.made))}
        pod = {**document, "metadata": {**document["metadata"], **identity}}
        self.exists.append(pod)
        if self.loses_answers:
            raise ClusterError("POST", "/pods", 0, "no answer")
        return pod


def make_pods() -> JobPods:
    """Memory of the pods at version 50, when there were none. The watch shows nothing later."""
    watch = make_pod_watch()
    watch.cache.replace({}, 50, watch.cache.begin_list())
    return JobPods({None: watch})


async def test_a_start_asks_for_no_pods_and_the_next_round_sees_those_that_were_made() -> None:
    server = PodServer()
    async with reconciler_of(server, make_pods()) as reconciler:
        for _ in range(4):
            await reconciler.reconcile(("a", "gpt"))
    assert len(set(server.made)) == len(server.made) == 4
    assert server.lists == 0


async def test_a_coordinator_that_does_not_answer_holds_no_replacement_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A round both reports a lost worker to it and makes the worker again."""
    asked, answers = asyncio.Event(), asyncio.Event()

    async def freezes(*_: Any) -> None:
        asked.set()
        await answers.wait()
        raise CoordinatorError("no answer")

    def lists_the_lost(_self: Coordinators, _key: Key, term: int, _running: Any) -> CoordinatorView:
        member = MemberStatus(member="gone", index=0, pod="gpt-w0-1", node="n1", rank=0, step=1)
        status = make_coordinator_status(term=term, revision=1, members=(member,))
        return CoordinatorView(status=status)

    server = PodServer()
    async with reconciler_of(server, make_pods()) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
        coordinator = next(p for p in server.exists if p["metadata"]["name"] == "gpt-c1")
        coordinator["status"] = {"phase": "Running", "podIP": "198.19.0.9"}
        server.exists = [p for p in server.exists if p["metadata"]["name"] != "gpt-w0-1"]
        reconciler._doubtful.add(("a", "gpt"))  # so that the pods are listed
        monkeypatch.setattr(Coordinators, "view", lists_the_lost)
        monkeypatch.setattr(Coordinators, "follow", lambda *_: None)
        monkeypatch.setattr(Coordinators, "post_lost", freezes)
        only_asks = asyncio.Event()
        async with asyncio.timeout(20):
            round_ = asyncio.create_task(reconciler.reconcile(("a", "gpt"), only_asks.set))
            await asked.wait()
            await only_asks.wait()  # others may begin a round now
            assert "gpt-w0-2" in server.made
            assert not round_.done()
            answers.set()
            await round_
        assert not reconciler._doubtful  # which pods there are is known all the same


class NoEvents(PodServer):
    """A quota of the namespace, `count/events: 0`, refuses all events."""

    asked = 0

    async def create_event(self, document: Json) -> None:
        self.asked += 1
        raise ClusterError("POST", "/events", 403, "exceeded quota: count/events")


async def test_a_quota_of_events_stops_nothing_else_and_is_not_asked_over_and_over() -> None:
    server = NoEvents()
    async with reconciler_of(server, make_pods()) as reconciler:
        pauses = [await reconciler.reconcile(("a", "gpt")) for _ in range(4)]
    assert len(server.made) == 4, "a coordinator and three workers"
    assert server.stored["status"]["replicas"] == 3
    assert server.asked == 1
    assert all(pause is not None and pause <= FIRST_PAUSE_SECONDS for pause in pauses)


class UnreadablePod(PodServer):
    """Somebody may have made a pod `big` with the job's label, which the decoder does not take."""

    is_there = False

    async def pods(self, *given: Any) -> tuple[list[Any], str]:
        if self.is_there:
            raise UnreadableObjectError.pod("/api/v1/namespaces/a/pods", "big")
        return await super().pods(*given)

    async def delete_pod(self, *_: Any, **__: Any) -> Json:
        raise AssertionError("no pod is to be deleted")

    def ready(self) -> Json:
        conditions: list[Json] = self.stored["status"]["conditions"]
        return next(each for each in conditions if each["type"] == "Ready")

    def is_named(self) -> bool:
        """Whether condition and message name the pod, and say what to do."""
        ready, message = self.ready(), self.stored["status"]["message"]
        said = ready["message"] == message and "pod big" in message
        return said and "delete that pod, or remove the label regroup.dev/job" in message


async def test_a_pod_that_cannot_be_read_holds_its_job_and_is_named_until_it_is_gone() -> None:
    server = UnreadablePod()
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
        made, before = list(server.made), server.stored["status"]
        del server.exists[1:]  # a worker is lost
        server.is_there = True
        for _ in range(3):
            assert await reconciler.reconcile(("a", "gpt")) == reconcile.STEADY_SECONDS
        ready = server.ready()
        assert (ready["status"], ready["reason"]) == ("False", "ObjectConflict")
        assert server.is_named()
        for field in ("phase", "replicas", "workers", "coordinatorTerm"):
            assert server.stored["status"].get(field) == before.get(field)
        assert server.made == made
        conflicts = [each for each in server.events if each["reason"] == "ObjectConflict"]
        assert [each["message"] for each in conflicts] == [ready["message"]]
        assert waiting_reasons(reconciler) == ["ObjectConflict"]
        written = len(server.statuses)
        await reconciler.reconcile(("a", "gpt"))
        assert len(server.statuses) == written, "what stands there is not written again"
        server.is_there = False
        await reconciler.reconcile(("a", "gpt"))
        assert server.ready()["reason"] != "ObjectConflict"
        assert len(server.made) > len(made), "the lost worker is replaced"


async def test_a_new_job_with_an_unreadable_pod_makes_nothing_before_it_is_gone() -> None:
    server = UnreadablePod()
    server.is_there = True
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
        assert server.is_named()
        assert server.made == []
        server.is_there = False
        await reconciler.reconcile(("a", "gpt"))
    assert len(server.made) == 4


async def test_a_job_that_has_ended_keeps_its_end_beside_an_unreadable_pod() -> None:
    server = UnreadablePod()
    ended = {"type": "Complete", "status": "True", "reason": "Done", "message": "all steps"}
    ended |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    server.stored["status"] = {"phase": "Succeeded", "conditions": [ended]}
    server.is_there = True
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
    assert server.statuses == []
    assert [each["reason"] for each in server.events] == ["ObjectConflict"]


async def test_a_job_that_is_being_deleted_says_nothing_of_an_unreadable_pod() -> None:
    server = UnreadablePod()
    server.stored["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    server.is_there = True
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
    assert (server.statuses, server.events) == ([], [])


async def test_a_pod_that_memory_fails_to_keep_is_named_too() -> None:
    server = UnreadablePod()
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
        made = list(server.made)
        server.exists[0]["metadata"]["name"] = "big"
        server.exists[0]["spec"] = 7
        assert await reconciler.reconcile(("a", "gpt")) == reconcile.STEADY_SECONDS
    assert server.is_named()
    assert server.made == made


@pytest.mark.parametrize(
    ("method", "what", "advice"),
    [
        ("service", "Service gpt-coordinator", "or delete it"),
        ("disruption_budget", "PodDisruptionBudget gpt-workers", "or delete it"),
        ("network_policy", "NetworkPolicy gpt-isolated", "or delete it"),
        ("claim", "PersistentVolumeClaim shared", "do not delete it"),
    ],
)
async def test_an_object_of_the_jobs_names_that_cannot_be_read_holds_the_job_and_is_named(
    monkeypatch: pytest.MonkeyPatch, method: str, what: str, advice: str
) -> None:
    server = UnreadablePod()
    claim = {"persistentVolumeClaim": {"claimName": "shared"}}
    server.stored["spec"] = make_spec(checkpoint={"storage": claim})
    is_large, read = [True], getattr(server, method)

    async def answer(*given: Any) -> Any:
        if is_large:
            raise UnreadableError("GET", "/there", 0, "cannot read the answer: it has more bytes")
        return await read(*given)

    monkeypatch.setattr(server, method, answer)
    async with reconciler_of(server) as reconciler:
        assert await reconciler.reconcile(("a", "gpt")) == reconcile.STEADY_SECONDS
        assert server.ready()["reason"] == "ObjectConflict"
        message = server.ready()["message"]
        assert f"cannot read {what}" in message
        assert "it has more bytes" in message
        assert advice in message
        assert server.made == []
        is_large.clear()
        await reconciler.reconcile(("a", "gpt"))
    assert server.ready()["reason"] != "ObjectConflict"
    assert server.made


class FullQuota(PodServer):
    """A quota refuses pods while it is full."""

    refusal: ClusterError | None = None

    async def create_pod(self, document: Json) -> Json:
        if self.refusal is not None:
            raise self.refusal
        return await super().create_pod(document)

    def term(self) -> int:
        """The term in the status."""
        term: int = self.stored["status"]["coordinatorTerm"]
        return term

    def change_spec(self) -> None:
        """A change of the spec is worth a try at once."""
        self.stored["metadata"]["generation"] += 1
        self.stored = in_next_version(self.stored)


async def test_a_coordinator_that_a_quota_refuses_keeps_its_term_until_it_is_made() -> None:
    server = FullQuota()
    async with reconciler_of(server, make_pods()) as reconciler:
        server.refusal = ClusterError("POST", "/pods", 403, "exceeded quota: few")
        for _ in range(3):
            await reconciler.reconcile(("a", "gpt"))
            server.change_spec()
        assert server.term() == 1
        server.refusal = None
        await reconciler.reconcile(("a", "gpt"))
        assert (server.made[0], server.term()) == ("gpt-c1", 1)
        server.exists = [pod for pod in server.exists if pod["metadata"]["name"] != "gpt-c1"]
        server.refusal = ClusterError("POST", "/pods", 0, "no answer")
        for term in (2, 3):
            reconciler._doubtful.add(("a", "gpt"))  # so that the pods are listed
            server.change_spec()
            await reconciler.reconcile(("a", "gpt"))
            assert server.term() == term, "the pod may have been made"


class Recreating(FullQuota):
    """The Service is that of the job which is stored now."""

    async def service(self, namespace: str, name: str) -> Any:
        found = await super().service(namespace, name)
        found["metadata"]["ownerReferences"][0]["uid"] = self.stored["metadata"]["uid"]
        return found


async def test_a_job_that_is_made_again_at_once_is_not_held_back_by_what_was_refused_before() -> (
    None
):
    """As by `kubectl replace --force`, between two rounds."""
    server = Recreating()
    async with reconciler_of(server, make_pods()) as reconciler:
        server.refusal = ClusterError("POST", "/pods", 403, "exceeded quota: few")
        for _ in range(3):
            server.stored["metadata"]["generation"] = 1
            await reconciler.reconcile(("a", "gpt"))
        server.refusal = None
        metadata = {**server.stored["metadata"], "uid": "uid-2", "resourceVersion": "500"}
        server.stored = {"metadata": metadata, "spec": server.stored["spec"]}
        await reconciler.reconcile(("a", "gpt"))
        assert "gpt-c1" in server.made
        assert "quota" not in server.stored["status"]["message"]


async def test_memory_that_lacks_the_pods_of_a_job_makes_no_second_ones() -> None:
    """As after a change of the operator: the status is ahead of the pods that memory knows."""
    server = PodServer()
    async with reconciler_of(server) as former:
        for _ in range(3):
            await former.reconcile(("a", "gpt"))
    assert len(server.made) == 4
    server.lists = 0
    async with reconciler_of(server, make_pods()) as successor:
        for _ in range(3):
            await successor.reconcile(("a", "gpt"))
    assert len(server.made) == 4
    assert server.lists == 1, "what the list has shown is known from then on"


@pytest.mark.parametrize(
    ("is_shown", "phase", "lists"),
    [(True, "Running", 0), (True, "Failed", 0), (False, "Running", 1)],
    ids=["deleted", "failed", "left out"],
)
async def test_a_replacement_lists_no_pods_once_the_former_worker_was_seen_to_end(
    is_shown: bool, phase: str, lists: int
) -> None:
    """A watch that leaves out a deletion leaves a worker that only its status counts."""
    server, watch = PodServer(), make_pod_watch()
    watch.cache.replace({}, 50, watch.cache.begin_list())
    async with reconciler_of(server, JobPods({None: watch})) as reconciler:
        for _ in range(4):
            await reconciler.reconcile(("a", "gpt"))
        lost = server.made.index("gpt-w1-1")

        def show(number: int, version: int, *, deleted: bool = False) -> None:
            pod = server.exists[number]
            pod["metadata"]["resourceVersion"] = str(version)
            pod["status"] = {"phase": phase if number == lost else "Running"}
            for change in watch.cache.apply(watch.read(pod), deleted=deleted):
                reconciler._memory.worker_ends.note_change(change)

        for number in range(len(server.exists)):
            if number != lost or is_shown:
                show(number, 150 + number)
        if is_shown and phase == "Running":
            show(lost, 200, deleted=True)
        if phase == "Running":
            del server.exists[lost]
        await reconciler.reconcile(("a", "gpt"))
    assert server.made[-1] == "gpt-w1-2"
    assert server.lists == lists


class LateServer(PodServer):
    """It takes its time with the second worker 1, whose request ends meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[Json] = []

    async def create_pod(self, document: Json) -> Json:
        pod = await super().create_pod(document)
        if document["metadata"]["name"] == "gpt-w1-2":
            self.late.append(self.exists.pop())
            raise ClusterError("POST", "/pods", 0, "no answer")
        return pod


async def test_a_worker_that_is_made_late_is_not_made_again_however_late_memory_sees_it() -> None:
    """The list that follows its request is too early."""
    server, watch = LateServer(), make_pod_watch()
    watch.cache.replace({}, 50, watch.cache.begin_list())
    async with reconciler_of(server, JobPods({None: watch})) as reconciler:
        for _ in range(4):
            await reconciler.reconcile(("a", "gpt"))
        for version, pod in enumerate(server.exists, 150):
            pod["metadata"]["resourceVersion"] = str(version)
            has_failed = pod["metadata"]["name"] == "gpt-w1-1"
            pod["status"] = {"phase": "Failed" if has_failed else "Pending"}
            watch.cache.apply(watch.read(pod))
        for _ in range(2):
            await reconciler.reconcile(("a", "gpt"))
        assert (server.made[-1], server.lists) == ("gpt-w1-2", 1)
        server.exists += server.late
        reconciler._refusals.clear()  # as when the pause has ended
        await reconciler.reconcile(("a", "gpt"))
    assert (server.made[-1], server.lists) == ("gpt-w1-2", 2)


async def test_a_job_is_suspended_once_the_api_server_has_none_of_its_pods() -> None:
    """A watch may have left some out, and the status forgets what they were made of."""
    deleted: list[str] = []

    class Deleting(PodServer):
        async def delete_pod(self, _namespace: str, name: str, *_: Any) -> Json:
            deleted.append(name)
            return {}

    server = Deleting()
    async with reconciler_of(server) as former:
        await former.reconcile(("a", "gpt"))
    server.stored["spec"] = make_spec(networkPolicy="None", suspend=True)
    server.stored["metadata"]["generation"] = 2
    server.lists = 0
    async with reconciler_of(server, make_pods()) as reconciler:
        reconciler._looked_at["a", "gpt"] = "uid-1"  # so that it counts on its memory
        await reconciler.reconcile(("a", "gpt"))
    assert sorted(deleted) == sorted(server.made)
    assert (server.lists, bool(server.stored["status"]["images"])) == (1, True)


async def test_after_a_write_without_an_answer_the_pods_are_asked_for() -> None:
    server = PodServer()
    server.loses_answers = True
    async with reconciler_of(server, make_pods()) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
        assert server.made
        assert server.lists == 0
        server.loses_answers = False
        for _ in range(2):
            await reconciler.reconcile(("a", "gpt"))
    assert len(set(server.made)) == len(server.made)
    assert server.lists == 1


class BusyServer(PlainServer):
    """Somebody else changes the job; how often it is asked for the job is counted."""

    asked = 0

    async def job(self, *_: Any) -> Json:
        self.asked += 1
        return self.stored

    async def change_status(self, _ns: str, _name: str, status: Json, present: Identity) -> Json:
        if present.version != self.stored["metadata"]["resourceVersion"]:
            raise ConflictError("PATCH", "/jobs/gpt", 409, "it has changed")
        answer = await super().change_status(_ns, _name, status, present)
        self.change(answer["spec"])
        return self.stored

    def change(self, spec: Json) -> None:
        """Let the job have this spec, in the next version."""
        self.stored = in_next_version({**self.stored, "spec": spec})


async def test_the_job_is_asked_for_only_after_a_status_that_was_refused() -> None:
    server = BusyServer(make_document("first"))
    watch = make_job_watch()
    seen = watch.read(server.stored)
    watch.cache.replace({seen.key: seen}, 7, watch.cache.begin_list())
    jobs = RememberedObjects({None: watch}, server.job)
    async with reconciler_of(server, jobs=jobs) as reconciler:
        for _ in range(3):
            await reconciler.reconcile(("a", "gpt"))
        assert (server.asked, len(server.statuses)) == (0, 1), "its own write is in memory"
        server.change({"replicas": 1, "second": 1})
        watch.cache.apply(watch.read(server.stored))
        server.change({"replicas": 1, "third": 1})
        pause = await reconciler.reconcile(("a", "gpt"))
        assert pause == reconcile.CONFLICT_SECONDS > 0, "it may be changed in a loop"
        assert (server.asked, len(server.statuses)) == (1, 1)
        await reconciler.reconcile(("a", "gpt"))
        assert (server.asked, len(server.statuses)) == (1, 2)
        assert "third" in server.stored["status"]["message"]
        await reconciler.reconcile(("a", "gpt"))
        assert server.asked == 1
