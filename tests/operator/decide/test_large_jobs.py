"""A plan for the largest job takes as much longer as it has more workers."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from regroup_operator.api import names
from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS
from regroup_operator.decide.planner import plan
from regroup_operator.observe.kubernetes_objects import read_job
from regroup_operator.observe.observed import (
    Claim,
    CoordinatorView,
    Job,
    Node,
    Observed,
    Pod,
    Service,
)
from regroup_trainer.protocol.job_status import CoordinatorStatus, MemberStatus
from tests.support.operator_simulation import make_coordinator_status, make_spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE = "2025-12-31T00:00:00Z"
SOME_WORKERS = DEFAULT_MAX_WORKERS // 16
MOST_TRIES = 20
MOST_TIMES_AS_LONG = 48
"""For sixteen times as many workers: three times what is linear, a fifth of what is quadratic. The
caches of a busy machine hold a small job, and no large one: 2.3 times what is linear was measured.
"""
ETCD_BYTES = 1024 * 1024
"""What the API server stores with room for the spec: etcd takes 1.5 MiB in a request."""


def make_job(workers: int) -> Job:
    """A job that has started."""
    bounds = {"minReplicas": 1, "maxReplicas": workers}
    status = {"startTime": BEFORE, "coordinatorTerm": 1, "nextIncarnation": 2}
    metadata = {"namespace": "a", "name": "gpt", "uid": "uid-1", "generation": 1}
    spec = make_spec(replicas=workers, elasticPolicy=bounds)
    document = {"metadata": metadata, "spec": spec, "status": status}
    job = read_job(document, NOW, max_workers=max(workers, DEFAULT_MAX_WORKERS))
    assert isinstance(job, Job)
    return job


def make_pod(index: int) -> Pod:
    """A worker that runs on a node of its own."""
    return Pod(
        name=f"gpt-w{index}-1",
        uid=f"4322f31b-0000-4000-8000-{index:012}",
        role=names.WORKER,
        index=index,
        term=-1,
        phase="Running",
        node=f"node-{index}",
        ip=f"10.{index // 250}.{index % 250}.7",
        coordinator_address="198.19.0.1",
        placed=BEFORE,
    )


def observe(pods: tuple[Pod, ...], report: CoordinatorStatus) -> Observed:
    """A job with these workers, whose coordinator reports this."""
    leader = Pod(
        "gpt-c1", "uid-c", names.COORDINATOR, -1, 1, "Running", node="node-c", ip="10.9.9.9"
    )
    view = CoordinatorView(
        status=report,
        answering_seconds=60,
        no_contact_seconds={pod.uid: 1.0 for pod in pods},
        lost_seconds={member.member: 9.0 for member in report.members if member.lost},
    )
    return Observed(
        pods=(leader, *pods),
        service=Service(1, "198.19.0.1", BEFORE),
        network_policy=True,
        token_sent_seconds=1.0,
        claim=Claim("shared"),
        coordinator=view,
    )


def report_of(pods: tuple[Pod, ...], lost: Callable[[Pod], bool]) -> CoordinatorStatus:
    """All are members, of which some are lost."""
    members = tuple(
        MemberStatus(
            member=pod.uid,
            index=pod.index,
            pod=pod.name,
            node=pod.node,
            rank=pod.index,
            step=1,
            lost="unresponsive" if lost(pod) else "",
        )
        for pod in pods
    )
    return make_coordinator_status(members=members, agents_in_contact=(), world_size=len(pods))


def starting(pods: tuple[Pod, ...]) -> Observed:
    return observe((), make_coordinator_status(phase="waiting", generation=None))


def importing(pods: tuple[Pod, ...]) -> Observed:
    names = tuple(pod.uid for pod in pods)
    return observe(
        pods, make_coordinator_status(phase="waiting", generation=None, agents_in_contact=names)
    )


def training(pods: tuple[Pod, ...]) -> Observed:
    return observe(pods, report_of(pods, lost=lambda _: False))


def one_lost(pods: tuple[Pod, ...]) -> Observed:
    gone = replace(pods[0], phase="Failed", exit_code=137, ended=BEFORE)
    return observe((gone, *pods[1:]), report_of(pods, lost=lambda pod: pod is pods[0]))


def half_ended(pods: tuple[Pod, ...]) -> Observed:
    ended = tuple(
        replace(pod, phase="Failed", exit_code=137, ended=BEFORE) if pod.index % 2 else pod
        for pod in pods
    )
    return observe(ended, report_of(pods, lost=lambda _: False))


def half_without_nodes(pods: tuple[Pod, ...]) -> Observed:
    seen = observe(pods, report_of(pods, lost=lambda pod: bool(pod.index % 2)))
    nodes = {pod.node: Node(pod.node, exists=False) for pod in pods if pod.index % 2}
    return replace(seen, nodes=nodes)


def half_stuck(pods: tuple[Pod, ...]) -> Observed:
    """Kubernetes waits for nodes that do not exist any more to end their pods."""
    ending = tuple(replace(pod, terminating=True) if pod.index % 2 else pod for pod in pods)
    seen = observe(ending, report_of(pods, lost=lambda _: False))
    nodes = {pod.node: Node(pod.node, exists=False) for pod in pods if pod.index % 2}
    return replace(seen, nodes=nodes)


def twice_as_many_as_wanted(pods: tuple[Pod, ...]) -> Observed:
    more = tuple(make_pod(index + len(pods)) for index in range(len(pods)))
    return training((*pods, *more))


SCENES = (
    starting,
    importing,
    training,
    one_lost,
    half_ended,
    half_without_nodes,
    half_stuck,
    twice_as_many_as_wanted,
)


def plan_of(
    scene: Callable[[tuple[Pod, ...]], Observed], workers: int
) -> tuple[float, TrainingJobStatus]:
    """CPU seconds of a plan, and the status that it writes."""
    job, pods = make_job(workers), tuple(make_pod(index) for index in range(workers))
    observed = scene(pods)  # anew: what a former plan has computed is kept with it
    gc.collect()
    gc.disable()  # a collection looks at all that former tests have left
    try:
        begun = time.process_time()
        status = plan(job, observed, NOW).status
        return time.process_time() - begun, status
    finally:
        gc.enable()


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_time_of_a_plan_grows_with_the_workers_and_its_status_can_be_stored(
    scene: Callable[[tuple[Pod, ...]], Observed],
) -> None:
    (few, _), (many, status) = plan_of(scene, SOME_WORKERS), plan_of(scene, DEFAULT_MAX_WORKERS)
    for _ in range(MOST_TRIES):  # the least of some: what else runs here can only add to it
        if many < MOST_TIMES_AS_LONG * few:
            break
        few = min(few, plan_of(scene, SOME_WORKERS)[0])
        many = min(many, plan_of(scene, DEFAULT_MAX_WORKERS)[0])
    assert many < MOST_TIMES_AS_LONG * few
    written = status.model_dump_json(by_alias=True, exclude_none=True)
    assert len(written.encode()) < ETCD_BYTES


@pytest.mark.parametrize("scene", [training, half_ended, half_without_nodes])
def test_the_status_of_ten_thousand_workers_keeps_its_limits(
    scene: Callable[[tuple[Pod, ...]], Observed],
) -> None:
    job, pods = make_job(10_000), tuple(make_pod(index) for index in range(10_000))
    status = plan(job, scene(pods), NOW).status
    written = status.model_dump_json(by_alias=True, exclude_none=True)
    assert len(written.encode()) < ETCD_BYTES
    TrainingJobStatus.model_validate_json(written)


@pytest.mark.parametrize("lost", [10, 50, 500, 2000])
@pytest.mark.parametrize(
    ("scene", "reason", "first"),
    [
        (half_ended, "WorkerLost", "worker pod gpt-w1-1 on node node-1 ended with"),
        (half_without_nodes, "NodeLost", "gpt-w1-1 on node node-1 counts as lost: it sends"),
        (half_stuck, "PodForceDeleted", "gpt-w1-1 was removed by force: its node is gone"),
    ],
)
def test_losses_of_many_workers_at_once_are_one_event(
    scene: Callable[[tuple[Pod, ...]], Observed], reason: str, first: str, lost: int
) -> None:
    job, pods = make_job(2 * lost), tuple(make_pod(index) for index in range(2 * lost))
    events = plan(job, scene(pods), NOW).events
    (event,) = (event for event in events if event.reason == reason)
    assert f"gpt-w1-1, gpt-w3-1, gpt-w5-1 and {lost - 3} more; the first: {first}" in event.message
    assert event.message.startswith(f"{lost} ")
    assert event == next(e for e in plan(job, scene(pods), NOW).events if e.reason == reason)
