"""Actions, where the API server refuses them; how many are requested at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import Any, cast

import pytest

from regroup_operator.api import names
from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.coordination import Coordinators
from regroup_operator.controller.executor import (
    _WORKER_PODS,
    AGENTS_AT_ONCE,
    MOST_AT_ONCE,
    MOST_RENDERED,
    Executor,
    beside_each_other,
    in_batches,
)
from regroup_operator.decide.plan import (
    Action,
    CreateCoordinator,
    CreateWorker,
    EnsureAccess,
    EnsureDisruptionBudget,
    EnsureService,
    EnsureToken,
    PostLost,
    PutDesired,
    SendAddress,
)
from regroup_operator.errors import ClusterError, CoordinatorError
from regroup_operator.informer.job_memory import JobMemory
from regroup_operator.informer.remembered_objects import RememberedObjects
from regroup_operator.observe.observed import CoordinatorView, Observed, Pod, Service
from regroup_operator.render import workload
from regroup_trainer.protocol.environment import CoordinatorEnvironment
from regroup_trainer.protocol.ledger import FailedStarts
from tests.support.job_memory import make_memory
from tests.support.operator_simulation import make_coordinator_status
from tests.support.rendering import KEYS, SETTINGS, make_valid_job, values_of

Json = dict[str, Any]


def make_executor(
    server: object, memory: JobMemory | None = None, agents: object = None
) -> Executor:
    """An executor that sends its requests there."""
    cluster, coordinators = cast(Cluster, server), cast(Coordinators, agents)
    return Executor(cluster, memory or make_memory(), coordinators, SETTINGS, KEYS)


class Full:
    """The quota of Secrets is used up: it refuses also one that exists."""

    async def create_secret(self, _document: Any) -> None:
        raise ClusterError("POST", "/api/v1/secrets", 403, "exceeded quota", "Forbidden")


async def test_a_token_that_cannot_be_sent_again_stops_nothing_else() -> None:
    executor = make_executor(Full())
    await executor.execute(EnsureToken(), make_valid_job(), Observed())
    with pytest.raises(ClusterError, match="exceeded quota"):
        await executor.execute(EnsureAccess(), make_valid_job(), Observed())


def test_what_needs_nothing_of_each_other_is_sent_in_batches_that_grow() -> None:
    pods: list[Action] = [CreateCoordinator(1, ())]
    pods += [CreateWorker(index, 1, ()) for index in range(49)]
    actions = [EnsureAccess(), EnsureService(1), *pods, PutDesired(), EnsureDisruptionBudget(1)]
    batches = list(in_batches(actions))
    assert [action for batch in batches for action in batch] == actions
    assert [len(batch) for batch in batches] == [2, 4, 8, MOST_AT_ONCE, 16, 6, 1, 1]


def test_what_asks_pods_is_beside_what_follows_and_after_what_it_may_need() -> None:
    ask: list[Action] = [PutDesired(), PostLost(("m",), "gone"), SendAddress(())]
    first: list[Action] = [EnsureToken(), EnsureService(1)]
    workers: list[Action] = [CreateWorker(0, 2, ())]
    budget = EnsureDisruptionBudget(1)
    parts = beside_each_other([*first, *ask, *workers, budget])
    assert list(map(list, parts)) == [first, [*ask, budget], workers]
    assert beside_each_other(workers) == (tuple(workers), (), ())


class SmallQuota:
    """Takes so many pods and refuses all others."""

    def __init__(self, pods: int) -> None:
        self.left = pods
        self.requests = 0

    async def create_pod(self, _document: Any) -> Json:
        self.requests += 1
        await asyncio.sleep(0)
        self.left -= 1
        if self.left < 0:
            raise ClusterError("POST", "/api/v1/pods", 403, "exceeded quota", "Forbidden")
        return {}


async def test_a_batch_ends_wholly_before_its_refusal_counts() -> None:
    server = SmallQuota(2)
    executor = make_executor(server)
    batch = tuple(CreateWorker(index, 1, ()) for index in range(8))
    _, failed = await executor.execute_all(batch, make_valid_job(), Observed())
    assert [str(error).rpartition(" ")[2] for _, error in failed] == ["quota"] * 6
    assert (server.requests, server.left) == (8, -6)


class Taking:
    """Takes each pod after a moment."""

    def __init__(self) -> None:
        self.documents: list[Json] = []

    async def create_pod(self, document: Json) -> Json:
        self.documents.append(document)
        await asyncio.sleep(0.01)
        return {}


async def test_workers_of_a_round_are_rendered_once_and_differ_in_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a spec just below its bounds, each of a hundred took 25 ms."""
    rendered: list[Json] = []
    render = workload.worker_pod

    def count(*arguments: Any) -> Json:
        rendered.append(render(*arguments))
        return rendered[-1]

    monkeypatch.setitem(_WORKER_PODS, "regroup", count)
    server = Taking()
    executor, job = make_executor(server), make_valid_job()
    actions = tuple(CreateWorker(index, 2 + index, ()) for index in range(20))
    executor.rehearse(actions, job, Observed())
    for batch in in_batches(actions):
        await executor.execute_all(batch, replace(job), Observed())
    assert len(rendered) == 1
    places = [(action.index, action.incarnation) for action in actions]
    assert server.documents == [render(job, SETTINGS, place, "", ()) for place in places]


async def test_a_worker_is_rendered_again_where_more_than_its_place_differs() -> None:
    server = Taking()
    executor, job = make_executor(server), make_valid_job()
    other = make_valid_job(template={"spec": {"nodeSelector": {"gpu": "a100"}}})
    at = Observed(service=Service(1, "198.19.0.9"))
    for of, seen, excluded in (
        (job, Observed(), ()),
        (job, Observed(), ("n1",)),
        (job, at, ("n1",)),
        (other, at, ("n1",)),
        (job, Observed(), ()),
    ):
        await executor.execute_all((CreateWorker(0, 1, excluded),), of, seen)
        address = seen.service.address if seen.service else ""
        assert server.documents[-1] == workload.worker_pod(of, SETTINGS, (0, 1), address, excluded)


async def test_of_many_jobs_few_workers_are_kept() -> None:
    executor = make_executor(Taking())
    for number in range(3 * MOST_RENDERED):
        job = replace(make_valid_job(), name=f"job{number}")
        executor.rehearse((CreateWorker(0, 1, ()),), job, Observed())
    assert len(executor._workers) == MOST_RENDERED


async def test_others_get_turns_between_the_requests_of_a_batch() -> None:
    server = Taking()
    sent: list[int] = []

    async def watch() -> None:
        while True:
            sent.append(len(server.documents))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    batch = tuple(CreateWorker(index, 1, ()) for index in range(MOST_AT_ONCE))
    await make_executor(server).execute_all(batch, make_valid_job(), Observed())
    watching.cancel()
    assert set(range(1, MOST_AT_ONCE)) <= set(sent)


class Relabelling:
    """Changes the metadata of each pod that is created, as a mutating webhook may."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.deleted: list[tuple[str, str]] = []

    async def create_pod(self, document: Json) -> Json:
        made = {**document["metadata"], "uid": "uid-1", "resourceVersion": "12", **self.changes}
        return {**document, "metadata": made}

    async def delete_pod(self, _namespace: str, name: str, uid: str) -> Json:
        self.deleted.append((name, uid))
        return {}


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"labels": {}}, "regroup.dev/job, regroup.dev/role, regroup.dev/index"),
        ({"labels": None}, "regroup.dev/job, regroup.dev/role, regroup.dev/index"),
        (
            {"labels": names.labels("other", names.WORKER, index=0)},
            "regroup.dev/job",
        ),
        ({"ownerReferences": []}, "ownerReferences"),
    ],
)
async def test_a_pod_that_comes_without_its_labels_or_owner_is_deleted_again_and_named(
    changes: Json, lost: str
) -> None:
    server = Relabelling(**changes)
    executor = make_executor(server)
    batch = (CreateWorker(0, 1, ()),)
    _, ((_, error),) = await executor.execute_all(batch, make_valid_job(), Observed())
    assert f"pod gpt-w0-1 came without its {lost}, and is deleted again" in str(error)
    assert server.deleted == [("gpt-w0-1", "uid-1")]


async def test_a_pod_that_gets_more_labels_is_as_it_was_asked_for() -> None:
    more = {**names.labels("gpt", names.WORKER, index=0), "sidecar": "injected"}
    server, memory = Relabelling(labels=more), make_memory()
    await make_executor(server, memory).execute(
        CreateWorker(0, 1, ()), make_valid_job(), Observed()
    )
    assert server.deleted == []


class Addresses:
    """Gives each Service an address, and takes each pod."""

    def __init__(self) -> None:
        self.made: list[Json] = []

    async def create_service(self, document: Json) -> Json:
        metadata = {**document["metadata"], "uid": "uid-1", "resourceVersion": "12"}
        return {**document, "metadata": metadata, "spec": {"clusterIP": "198.19.0.7"}}

    async def create_pod(self, document: Json) -> None:
        self.made.append(document)


async def test_workers_get_the_address_that_the_answer_about_their_service_says() -> None:
    server, job = Addresses(), make_valid_job()
    executor = make_executor(server)
    observed, failed = await executor.execute_all((EnsureService(1),), job, Observed())
    assert failed == []
    await executor.execute_all((CreateWorker(0, 1, ()),), job, observed)
    (worker,) = server.made
    variables = values_of(worker["spec"]["containers"][0])
    assert variables["REGROUP_COORDINATOR_URL"] == "http://198.19.0.7:8471"


class Pods:
    """Takes every pod."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    async def create_pod(self, document: Any) -> None:
        self.made.append(document)


async def test_a_new_coordinator_gets_the_tries_that_the_last_one_has_counted() -> None:
    server = Pods()
    executor = make_executor(server)
    tries = FailedStarts(error="KeyError: 'SIZE'", tries=2, machines=("a", "b"), since=1.0)
    for known in (tries, None):
        view = CoordinatorView(status=make_coordinator_status(failed_starts=known))
        observed = Observed(coordinator=view)
        await executor.execute(CreateCoordinator(2, ()), make_valid_job(), observed)
        container = server.made[-1]["spec"]["containers"][0]
        environment = CoordinatorEnvironment.read(values_of(container))
        assert environment.first_desired().failed_starts == known


class Maker:
    """It makes what it is asked for."""

    async def create_secret(self, _document: Json) -> None:
        return

    async def create_service(self, document: Json) -> Json:
        identity = {"uid": "uid-1", "resourceVersion": "12"}
        return {**document, "metadata": {**document["metadata"], **identity}}

    create_network_policy = create_disruption_budget = create_service


async def test_what_an_action_has_made_is_in_memory_before_the_watch_shows_it() -> None:
    memory, job = make_memory(), make_valid_job()
    made: dict[RememberedObjects, tuple[Action, str]] = {
        memory.services: (EnsureService(1), "gpt-coordinator"),
        memory.policies: (EnsureAccess(), "gpt-isolated"),
        memory.budgets: (EnsureDisruptionBudget(2), "gpt-workers"),
    }
    for objects, (action, name) in made.items():
        cache = objects._watches[None].cache
        cache.replace({}, 1, cache.begin_list())
        await make_executor(Maker(), memory).execute(action, job, Observed())
        assert await objects.get((job.namespace, name)) is not None


class Agents:
    """They take the coordinator's address in a moment; counts how many are asked at once."""

    def __init__(self, *, refuse: bool = False) -> None:
        self._refuse = refuse
        self.asked: list[str] = []
        self.most = 0
        self._now = 0

    async def send_address(self, address: str, _token: str, _url: str) -> None:
        self.asked.append(address)
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0)
        self._now -= 1
        if self._refuse:
            raise CoordinatorError("no answer")


async def test_a_worker_that_was_not_reached_counts_anew_when_it_needs_an_address_again() -> None:
    executor = make_executor(None, agents=Agents(refuse=True))
    job, pod = make_valid_job(), Pod("gpt-w0-1", "u0", "worker", 0, -1, "Running", ip="1")
    sent = SendAddress((pod,))
    await executor.execute(sent, job, Observed(pods=(pod,), service=Service(1, "198.19.0.2")))
    executor.note_plan(job.key, (sent,))
    assert executor.unreached_seconds(job.key).keys() == {"u0"}
    executor.note_plan(job.key, ())
    assert executor.unreached_seconds(job.key) == {}


async def test_a_new_address_is_sent_to_thousands_of_agents_a_bounded_number_at_a_time() -> None:
    agents = Agents()
    pods = tuple(
        Pod(f"gpt-w{n}-1", f"u{n}", "worker", n, -1, "Running", ip=str(n)) for n in range(2000)
    )
    observed = Observed(pods=pods, service=Service(1, "198.19.0.2"))
    executor = make_executor(None, agents=agents)
    await executor.execute(SendAddress(pods), make_valid_job(), observed)
    assert sorted(agents.asked) == sorted(pod.ip for pod in pods)
    assert agents.most == AGENTS_AT_ONCE


async def logged(action: Action, caplog: pytest.LogCaptureFixture, agents: object = None) -> str:
    """What the log says when this is executed."""
    with caplog.at_level(logging.INFO):
        service = Service(term=1, address="198.19.0.1")
        observed = Observed(pods=(), service=service)
        with contextlib.suppress(ClusterError):
            executor = make_executor(Full(), agents=agents)
            await executor.execute(action, make_valid_job(), observed)
    return caplog.text


async def test_invented_members_make_no_long_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    members = tuple(f"{n:0253d}" for n in range(4096))
    text = await logged(PostLost(members, "x" * 4000), caplog)
    assert "and 4093 more" in text
    assert len(text) < 1500


async def test_agents_that_refuse_an_address_are_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Refusing:
        async def send_address(self, *_: Any) -> None:
            raise CoordinatorError("PUT http://198.19.0.9:9103/v1/coordinator: 500 no")

    pods = tuple(
        Pod(f"gpt-w{n}-1", f"u{n}", "worker", n, -1, "Running", ip=str(n)) for n in range(4096)
    )
    text = await logged(SendAddress(pods), caplog, Refusing())
    assert "to 4096 of 4096 agents" in text
    assert len(text.splitlines()) == 2
    assert len(text) < 1500


async def test_excluded_nodes_make_no_long_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Made(Full):
        async def create_pod(self, _document: Any) -> Json:
            return {}

    action = CreateWorker(0, 1, tuple(f"{n:0253d}" for n in range(256)))
    with caplog.at_level(logging.INFO):
        await make_executor(Made()).execute(action, make_valid_job(), Observed(pods=()))
    assert len(caplog.text) < 1500
