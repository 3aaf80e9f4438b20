"""Why a job is not ready: the same reason in message, condition, plan and events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from regroup_operator.api.names import INJECTOR
from regroup_operator.controller.internal_error import REASON
from regroup_operator.decide.job_projection import project
from regroup_operator.decide.plan import Plan, PlanContext
from regroup_operator.decide.planner import plan
from regroup_operator.decide.waiting import JobView, waiting_events
from regroup_operator.observe.kubernetes_objects import read_job
from regroup_operator.observe.observed import Claim, CoordinatorView, Observed
from regroup_trainer.coordinator.waiting import REASONS
from regroup_trainer.protocol.job_status import CoordinatorPhase, MemberStatus, Outcome, Waiting
from regroup_trainer.protocol.waiting_reasons import WaitingReason
from tests.support.operator_simulation import (
    Simulation,
    assert_explained,
    make_coordinator_status,
    make_invalid_job,
    make_spec,
    make_torchrun_spec,
    training,
)


def planned(simulation: Simulation, observed: Observed | None = None) -> Plan:
    """A plan whose conditions all say why they are False."""
    what = plan(simulation.job(), observed or simulation.observed(), simulation.now)
    assert_explained(what)
    return what


def started() -> Simulation:
    """Its pods are made, and none runs."""
    simulation = Simulation()
    simulation.round()
    simulation.round()
    return simulation


def without_a_claim() -> Plan:
    return planned(Simulation(claim=None))


def with_a_claim_that_is_being_deleted() -> Plan:
    return planned(Simulation(claim=Claim("shared", deleting=True)))


def with_a_claim_of_one_node() -> Plan:
    return planned(Simulation(claim=Claim("shared", ("ReadWriteOnce",))))


def with_an_invalid_spec() -> Plan:
    simulation = training()
    what = plan(make_invalid_job(simulation.job()), simulation.observed(), simulation.now)
    assert_explained(what)
    return what


def with_a_spec_that_asks_for_what_is_not_built() -> Plan:
    simulation = Simulation()
    metadata = {"namespace": "default", "name": "gpt", "uid": "0000aaaa-1111", "generation": 1}
    document = {"metadata": metadata, "spec": make_spec(startupDeadlineSeconds=60)}
    what = plan(read_job(document, simulation.now), simulation.observed(), simulation.now)
    assert_explained(what)
    return what


def with_a_refused_request() -> Plan:
    simulation = training()
    return planned(simulation, replace(simulation.observed(), apply_error="403 exceeded quota"))


def with_a_key_that_is_gone() -> Plan:
    simulation = training()
    missing = {"apply_error": "key 1234 is gone", "apply_reason": WaitingReason.KeyMissing}
    return planned(simulation, replace(simulation.observed(), **missing))  # type: ignore[arg-type]


def with_an_image_that_cannot_be_pulled() -> Plan:
    simulation = started()
    for pod in simulation.workers():
        simulation.pods[pod.name] = replace(
            pod,
            node="n2",
            image="x:1",
            waiting_reason="ErrImagePull",
            waiting_message="not found",
        )
    return planned(simulation)


def with_a_coordinator_that_crashes() -> Plan:
    simulation = started()
    pod = next(pod for pod in simulation.pods.values() if pod.role == "coordinator")
    simulation.pods[pod.name] = replace(
        pod,
        waiting_reason="CrashLoopBackOff",
        exit_code=2,
        exit_message="volume is not writable\n2026-01-01 10:00:00,123 INFO it ends\n",
    )
    return planned(simulation)


def whose_first_pod_has_no_containers_for(seconds: float) -> Simulation:
    simulation = started()
    pod, placed = simulation.workers()[0], simulation.now.isoformat()
    simulation.pods[pod.name] = replace(
        pod, node="n2", placed=placed, waiting_reason="ContainerCreating"
    )
    simulation.tick(seconds)
    return simulation


def with_a_pod_without_containers() -> Plan:
    return planned(whose_first_pod_has_no_containers_for(30))


def with_a_pod_whose_volume_is_not_mounted() -> Plan:
    simulation = whose_first_pod_has_no_containers_for(11)
    failures = {
        simulation.workers()[0].uid: 'MountVolume.SetUp failed for volume "data": no such server'
    }
    return planned(simulation, replace(simulation.observed(), mount_failures=failures))


def with_a_pod_whose_image_does_not_come() -> Plan:
    simulation = whose_first_pod_has_no_containers_for(30)
    pulls = {simulation.workers()[0].uid: 'Pulling image "registry.example/train:2"'}
    return planned(simulation, replace(simulation.observed(), pulls=pulls))


def with_a_container_that_waits(reason: str, message: str, container: str = "") -> Plan:
    simulation = started()
    pod = simulation.workers()[0]
    waits = {"waiting_reason": reason, "waiting_message": message, "waiting_container": container}
    simulation.pods[pod.name] = replace(pod, node="n2", **waits)  # type: ignore[arg-type]
    return planned(simulation)


def with_a_pod_that_names_a_secret_that_does_not_exist() -> Plan:
    return with_a_container_that_waits("CreateContainerConfigError", 'secret "wandb" not found')


def with_a_container_that_the_runtime_cannot_make() -> Plan:
    return with_a_container_that_waits("CreateContainerError", "no command specified")


def with_a_sidecar_that_crashes() -> Plan:
    simulation = started()
    pod = simulation.workers()[0]
    simulation.pods[pod.name] = replace(
        pod,
        phase="Pending",
        node="n2",
        placed=simulation.now.isoformat(),
        waiting_reason="CrashLoopBackOff",
        waiting_container="proxy",
        ended_container="proxy",
        exit_code=3,
        exit_message="it begins\ncannot read /etc/proxy.conf\n",
    )
    simulation.tick(60)
    return planned(simulation)


def with_an_init_container_that_names_a_secret_that_does_not_exist() -> Plan:
    return with_a_container_that_waits(
        "CreateContainerConfigError", 'secret "s3" not found', "fetch"
    )


def with_an_agents_image_that_cannot_be_pulled() -> Plan:
    return with_a_container_that_waits("ErrImagePull", "no credentials", INJECTOR)


def with_a_full_quota() -> Plan:
    simulation = training()
    full = {"apply_error": "exceeded quota: few", "apply_reason": WaitingReason.QuotaExceeded}
    return planned(simulation, replace(simulation.observed(), **full))  # type: ignore[arg-type]


def with_an_unresponsive_worker() -> Plan:
    simulation = started()
    simulation.run_pods()
    simulation.dead_nodes = {"n2"}  # its pod runs, and is no member
    pod = simulation.workers()[2]
    simulation.no_contact_since[pod.uid] = simulation.now
    simulation.tick(12)
    return planned(simulation)


def with_a_pod_that_fits_nowhere() -> Plan:
    simulation = started()
    pod = simulation.workers()[0]
    simulation.pods[pod.name] = replace(pod, unschedulable="0/3 nodes: too little memory")
    return planned(simulation)


def with_pods_that_failed_twice() -> Plan:
    simulation = Simulation(spec=make_spec(restartPolicy={"backoffSeconds": 10}))
    simulation.run_rounds(4)
    for pod in simulation.workers():
        simulation.fail(pod, exit_code=1)
    return simulation.round()


def without_a_coordinator() -> Plan:
    return planned(started())


def with_a_coordinator_that_refuses() -> Plan:
    simulation = started()
    view = CoordinatorView(failures=1, error="http://198.18.0.1:8471: 401 wrong token")
    return planned(simulation, replace(simulation.observed(), coordinator=view))


def while_suspending() -> Plan:
    simulation = training()
    simulation.spec, simulation.generation = make_spec(suspend=True), 2
    simulation.outcome = Outcome(result="suspended", message="saved")
    return simulation.round()


def while_suspended() -> Plan:
    simulation = Simulation(spec=make_spec(suspend=True))
    simulation.run_rounds(2)
    return simulation.round()


def with_an_object_of_somebody_else() -> Plan:
    observed = replace(Simulation().observed(), conflict="Service gpt-coordinator is not of it")
    what = planned(Simulation(), observed)
    assert what.actions == ()
    return what


def without_a_store() -> Plan:
    return planned(Simulation(spec=make_torchrun_spec()))


def with_too_few_workers_of_torchrun() -> Plan:
    simulation = Simulation(spec=make_torchrun_spec())
    simulation.run_rounds(4)
    for name in ("gpt-w1-1", "gpt-w2-1"):
        simulation.pods[name] = replace(simulation.pods[name], terminating=True)
    return simulation.round()


GIVEN = [
    (with_an_invalid_spec, "InvalidSpec", "spec.trainer.x: unknown field"),
    (with_a_spec_that_asks_for_what_is_not_built, "NotSupported", "spec.startupDeadlineSeconds=60"),
    (without_a_claim, "ClaimMissing", "'shared' in default: create it"),
    (
        with_a_claim_that_is_being_deleted,
        "ClaimMissing",
        (
            "'shared' is being deleted: to keep the checkpoints, set "
            "persistentVolumeReclaimPolicy of its volume to Retain; then suspend the job, and "
            "create the claim again when it is gone"
        ),
    ),
    (with_a_claim_of_one_node, "ClaimNotShared", "need a ReadWriteMany claim"),
    (with_an_object_of_somebody_else, "ObjectConflict", "Service gpt-coordinator is not"),
    (with_a_key_that_is_gone, "KeyMissing", "key 1234 is gone"),
    (with_a_refused_request, "ApiError", "403 exceeded quota"),
    (with_a_full_quota, "QuotaExceeded", "exceeded quota: few"),
    (
        with_a_pod_that_names_a_secret_that_does_not_exist,
        "CreateContainerConfigError",
        (
            'cannot make the container of pod gpt-w0-1 on node n2: secret "wandb" not found (make '
            "what is missing, or correct its name in spec.template)"
        ),
    ),
    (
        with_an_init_container_that_names_a_secret_that_does_not_exist,
        "CreateContainerConfigError",
        'cannot make container fetch of pod gpt-w0-1 on node n2: secret "s3" not found',
    ),
    (
        with_an_agents_image_that_cannot_be_pulled,
        "ImageError",
        (
            "cannot pull the image of container regroup-agent of pod gpt-w0-1 on node n2: "
            "ErrImagePull: no credentials (check the operator's image)"
        ),
    ),
    (
        with_a_container_that_the_runtime_cannot_make,
        "CreateContainerError",
        (
            "the runtime cannot make the container of pod gpt-w0-1 on node n2: no command specified"
            " (check command, image and mounts of spec.template, and the node's runtime and "
            "devices)"
        ),
    ),
    (
        with_a_pod_whose_volume_is_not_mounted,
        "FailedMount",
        (
            'pod gpt-w0-1 on node n2 waits for a volume: MountVolume.SetUp failed for volume "data"'
            ": no such server (make or repair what it mounts, or correct it in the spec)"
        ),
    ),
    (
        with_an_image_that_cannot_be_pulled,
        "ImageError",
        "cannot pull image x:1 of pod gpt-w0-1 on node n2: ErrImagePull: not found",
    ),
    (
        with_a_coordinator_that_crashes,
        "CoordinatorCrashing",
        (
            "(wrong usage): volume is not writable: it fails each time that it is started (see "
            "kubectl logs gpt-c1 --previous)"
        ),
    ),
    (
        with_a_sidecar_that_crashes,
        "SidecarCrashing",
        (
            "container proxy of pod gpt-w0-1 on node n2 fails each time that it is started: it "
            "ended last with exit code 3: cannot read /etc/proxy.conf (see kubectl logs gpt-w0-1 "
            "-c proxy --previous)"
        ),
    ),
    (
        with_a_pod_without_containers,
        "ContainerCreating",
        "pod gpt-w0-1 is on node n2 since 2026-01-01",
    ),
    (
        with_an_unresponsive_worker,
        "WorkerUnresponsive",
        "worker pod gpt-w2-1 on node n3 runs, but its coordinator receives nothing from it",
    ),
    (with_a_pod_that_fits_nowhere, "Unschedulable", "0/3 nodes: too little memory"),
    (
        with_pods_that_failed_twice,
        "BackOff",
        "3 pods in a row failed (see their logs): the next ones",
    ),
    (without_a_coordinator, "CoordinatorPending", "see kubectl describe pod gpt-c1"),
    (
        with_a_coordinator_that_refuses,
        "CoordinatorUnreachable",
        "401 wrong token (see kubectl logs gpt-c1)",
    ),
    (
        with_a_pod_whose_image_does_not_come,
        "ContainerCreating",
        'the kubelet reports Pulling image "registry.example/train:2": it is large, or its',
    ),
    (while_suspending, "Suspending", "suspending: "),
    (while_suspended, "Suspended", "no pods are held (set spec.suspend to false to train on)"),
    (without_a_store, "StorePending", "see kubectl describe pod gpt-s1"),
    (with_too_few_workers_of_torchrun, "TooFewWorkers", "1 run, at least 2 are needed"),
]
"""The reasons that the operator itself gives: when, which one, and words of its message."""


def test_an_event_that_somebody_else_wrote_is_shown_in_one_printable_line() -> None:
    simulation = whose_first_pod_has_no_containers_for(11)
    failures = {simulation.workers()[0].uid: "lost\n\x1b[2Jall is well"}
    what = planned(simulation, replace(simulation.observed(), mount_failures=failures))
    assert what.waiting is not None
    assert r"waits for a volume: lost\n\x1b[2Jall is well (make" in what.waiting.message


@pytest.mark.parametrize(("make", "reason", "words"), GIVEN)
def test_the_reason_stands_in_the_message_the_condition_and_the_plan(
    make: Callable[[], Plan], reason: str, words: str
) -> None:
    what = make()
    assert what.waiting is not None
    assert what.waiting.reason == reason
    assert words in what.waiting.message
    if what.status.phase != "Running":
        assert what.status.message == what.waiting.message
    assert words in what.status.message
    assert not what.status.holds("Ready")


def test_each_reason_is_given_by_the_operator_or_by_a_coordinator_and_no_other_one() -> None:
    by_the_operator = {reason for _, reason, _ in GIVEN}
    by_coordinators = {reason.name for reason, _ in REASONS}
    by_a_failed_round = {REASON}
    given = by_the_operator | by_coordinators | by_a_failed_round
    assert given == {reason.name for reason in WaitingReason}


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        ("waiting", "TooFewWorkers"),
        ("starting", "GenerationStarting"),
        ("recovering", "GenerationFailed"),
        ("resizing", "GenerationEnding"),
        ("stopping", "GenerationEnding"),
    ],
)
@pytest.mark.parametrize("message", ["", "two workers are missing"])
def test_the_phase_of_a_coordinator_that_gives_no_reason_is_the_reason(
    phase: CoordinatorPhase, reason: str, message: str
) -> None:
    simulation = training()
    report = make_coordinator_status(phase=phase, message=message)
    view = CoordinatorView(report, answering_seconds=60)
    what = planned(simulation, replace(simulation.observed(), coordinator=view))
    assert what.waiting is not None
    assert (what.waiting.reason, what.status.message) == (
        reason,
        message or f"the coordinator is {phase}",
    )


def test_the_reason_that_a_coordinator_gives_is_shown_as_it_is() -> None:
    simulation = training()
    given = Waiting(reason="VolumeFull", message="no space on the volume: free some")
    report = make_coordinator_status(phase="waiting", message="waiting", waiting=given)
    view = CoordinatorView(report, answering_seconds=60)
    what = planned(simulation, replace(simulation.observed(), coordinator=view))
    assert what.waiting == given
    assert what.status.message == given.message


def test_a_job_that_trains_waits_for_nothing() -> None:
    what = training().round()
    assert what.waiting is None
    assert what.status.holds("Ready")


@pytest.mark.parametrize("result", ["completed", "failed"])
def test_a_job_that_has_ended_waits_for_nothing(result: str) -> None:
    simulation = training()
    simulation.outcome = Outcome(result=result, message="the end")  # type: ignore[arg-type]
    what = simulation.round()
    assert (what.waiting, what.status.message) == (None, "the end")
    ready = what.status.condition("Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "Finished")


def test_an_image_problem_of_a_replacement_is_named_while_the_others_train() -> None:
    simulation = training()
    simulation.fail(simulation.workers()[0], exit_code=143)
    simulation.round()
    new = next(pod for pod in simulation.workers() if pod.index == 0)
    simulation.pods[new.name] = replace(new, waiting_reason="ErrImagePull", image="x:1")
    what = simulation.round()
    assert what.waiting is None
    assert what.status.message.startswith("training; cannot pull image x:1")


def test_what_somebody_must_mend_is_an_event_once() -> None:
    simulation = Simulation(claim=None)
    first = simulation.round()
    assert [(event.type, event.reason) for event in first.events] == [("Warning", "ClaimMissing")]
    assert simulation.round().events == ()
    assert [event.reason for event in started().round().events] == []


# --- why a worker is missing, and what the coordinator's pod does ---------------------------------


def with_third_worker(**changes: object) -> Simulation:
    """A job whose third worker is not what it should be, and is no member."""
    simulation = training()
    pod = simulation.workers()[2]
    simulation.pods[pod.name] = replace(pod, **changes)  # type: ignore[arg-type]
    simulation.no_contact_since[pod.uid] = simulation.now
    return simulation


def failing_third_worker() -> Simulation:
    simulation = Simulation(spec=make_spec(restartPolicy={"backoffSeconds": 60}))
    simulation.run_rounds(4)
    simulation.status = simulation.status.model_copy(update={"pod_failures": 1})
    simulation.fail(simulation.workers()[2])
    return simulation


@pytest.mark.parametrize(
    ("simulation", "words"),
    [
        (with_third_worker(phase="Pending", node=""), "worker pod gpt-w2-1 waits for a node"),
        (
            with_third_worker(phase="Pending", node="", unschedulable="0/3 nodes: no memory"),
            "pod gpt-w2-1 cannot be scheduled: 0/3 nodes: no memory",
        ),
        (
            with_third_worker(phase="Pending"),
            "worker pod gpt-w2-1 on node n3 starts (see kubectl describe pod gpt-w2-1)",
        ),
        (
            with_third_worker(),
            (
                "worker pod gpt-w2-1 on node n3 runs, and has not connected yet "
                "(see kubectl logs gpt-w2-1)"
            ),
        ),
        (
            failing_third_worker(),
            (
                "worker 2 has no pod: the next is made at 2026-01-01T00:01:08Z, since 2 pods "
                "in a row failed (see their logs)"
            ),
        ),
    ],
)
def test_why_the_third_worker_is_missing_is_reported_while_two_train(
    simulation: Simulation, words: str
) -> None:
    status = simulation.round().status
    degraded = status.condition("Degraded")
    assert degraded is not None
    assert (status.phase, status.message) == ("Running", f"training; {words}")
    assert degraded.message == f"2 of 3 workers take part; {words}"


@pytest.mark.parametrize("rank", [None, 2])
def test_a_worker_that_imports_torch_or_waits_for_its_rank_is_named(rank: int | None) -> None:
    simulation = with_third_worker()
    observed = simulation.observed()
    report = observed.coordinator.status
    assert report is not None
    third = replace_rank(report.members[0], simulation.workers()[2].uid, rank)
    joined = report.model_copy(update={"members": (*report.members, third)})
    importing = report.model_copy(update={"agents_in_contact": (third.member,)})
    messages = [
        planned(simulation, replace(observed, coordinator=replace(observed.coordinator, status=s)))
        for s in (joined, importing)
    ]
    connected = "; worker pod gpt-w2-1 on node n3 is connected, and takes part in the next"
    assert (connected in messages[0].status.message) == (rank is None)
    assert messages[1].status.message.endswith("imports torch, and connects after that")


def replace_rank(member: MemberStatus, uid: str, rank: int | None) -> MemberStatus:
    return member.model_copy(update={"member": uid, "index": 2, "rank": rank})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"phase": "Pending", "node": ""}, "waits for a node (see kubectl describe pod gpt-c1)"),
        ({"phase": "Pending"}, "on node n1 starts (see kubectl describe pod gpt-c1)"),
        ({}, "on node n1 runs, and has not reported yet (see kubectl logs gpt-c1)"),
        ({"terminating": True}, "on node n1 is being deleted"),
    ],
)
def test_what_the_coordinators_pod_does_is_reported_while_it_does_not_report(
    changes: dict[str, object], words: str
) -> None:
    simulation = training()
    pod = simulation.coordinator()
    assert pod is not None
    simulation.pods[pod.name] = replace(pod, **changes)  # type: ignore[arg-type]
    observed = replace(simulation.observed(), coordinator=CoordinatorView())
    status = project(simulation.job(), observed, simulation.status, PlanContext(), simulation.now)
    assert status.phase == "Running"
    assert status.message == f"coordinator pod gpt-c1 {words}; the workers go on meanwhile"


def test_pods_that_start_slowly_one_after_the_other_give_one_event() -> None:
    simulation = started()
    view = JobView(simulation.job(), simulation.observed(), simulation.status, PlanContext())
    keys = set()
    for pod in ("gpt-w0-1", "gpt-w1-1"):
        waiting = Waiting.of(WaitingReason.ContainerCreating, f"pod {pod} is being made")
        context = replace(view.context, hindrance=waiting)
        events = waiting_events(replace(view, context=context), waiting)
        keys |= {event.key for event in events}
    assert len(keys) == 1
