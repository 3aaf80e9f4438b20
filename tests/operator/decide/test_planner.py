"""The operator's policy, as sequences in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_operator.api import names
from regroup_operator.decide.coordinator_evidence import UNANSWERED_SECONDS
from regroup_operator.decide.plan import (
    REQUEUE_SECONDS,
    CreateCoordinator,
    CreateWorker,
    DeleteJob,
    DeletePod,
    EnsureAccess,
    EnsureService,
    EnsureToken,
    Plan,
    PutDesired,
)
from regroup_operator.decide.planner import STEADY_SECONDS, plan
from regroup_operator.decide.staffing import create_missing
from regroup_operator.decide.succession import report_lost, update_coordinator
from regroup_operator.observe.observed import Claim, CoordinatorView, Node, Observed, Pod
from regroup_trainer.protocol.job_status import Outcome
from regroup_trainer.protocol.message import PROTOCOL_VERSION
from tests.support.operator_simulation import (
    NODES,
    Simulation,
    make_invalid_job,
    make_spec,
    names_of,
)


@pytest.fixture
def job() -> Simulation:
    """A job whose three workers train."""
    simulation = Simulation()
    simulation.run_rounds(4)
    assert len(simulation.workers()) == 3
    return simulation


# --- start ----------------------------------------------------------------------------------------


def test_one_round_makes_all_of_a_new_job_under_numbers_that_are_written_before() -> None:
    simulation = Simulation()
    what = simulation.round()
    assert (what.status.coordinator_term, what.status.next_incarnation) == (1, 2)
    kinds = [EnsureAccess, EnsureService, CreateCoordinator, *[CreateWorker] * 3]
    assert [type(a) for a in what.actions] == kinds
    again = simulation.round()
    assert again.actions == ()
    assert again.requeue_after != 0.0


def test_no_worker_is_made_in_a_round_that_makes_no_service_for_it() -> None:
    simulation = Simulation()
    held = frozenset({"CreateCoordinator"})
    observed = replace(simulation.observed(), held_back=held, apply_error="a full quota")
    assert plan(simulation.job(), observed, simulation.now).actions == ()


def test_a_large_job_makes_its_workers_over_several_rounds_without_a_pause() -> None:
    bounds = {"minReplicas": 2, "maxReplicas": 300}
    simulation = Simulation(make_spec(replicas=250, elasticPolicy=bounds))
    while not made_by(first := simulation.round()):
        simulation.run_pods()
        simulation.tick(2)
    rounds = [first, simulation.round(), simulation.round(), simulation.round()]
    assert [len(made_by(each)) for each in rounds] == [100, 100, 50, 0]
    assert [each.requeue_after for each in rounds[:2]] == [0.0, 0.0]
    assert rounds[2].requeue_after != 0.0
    assert {action.index for each in rounds for action in made_by(each)} == set(range(250))
    assert len(simulation.workers()) == 250
    created = [e.message for each in rounds for e in each.events if e.reason == "WorkersCreated"]
    assert [message.partition(" (")[2] for message in created] == [
        "150 more follow)",
        "50 more follow)",
        "",
    ]


def test_the_event_of_one_new_worker_counts_one_pod() -> None:
    (event,) = create_missing(Simulation(make_spec()).status, [3], ()).events
    assert event.message.startswith("1 worker pod: w3-")


def made_by(what: Plan) -> list[CreateWorker]:
    """The workers that a round makes."""
    return [action for action in what.actions if isinstance(action, CreateWorker)]


def test_workers_are_made_when_the_service_has_an_address(job: Simulation) -> None:
    assert names_of(job) == ["gpt-w0-1", "gpt-w1-1", "gpt-w2-1"]
    assert job.status.next_incarnation == 2
    assert job.status.phase == "Running"
    assert job.status.holds("Ready")
    assert job.status.ready_replicas == 3


def test_a_steady_job_is_left_alone(job: Simulation) -> None:
    what = job.round()
    assert what.actions == ()
    assert what.events == ()


def test_images_and_protocol_are_fixed_at_the_start(job: Simulation) -> None:
    assert job.status.images == {"trainer": "trainer:1", "coordinator": "operator:1"}
    assert job.status.protocol_version == PROTOCOL_VERSION


def test_the_digests_that_kubelets_report_hold_until_the_job_is_suspended(job: Simulation) -> None:
    digest, other = f"sha256:{'0' * 64}", f"sha256:{'1' * 64}"
    pulled = [f"docker.io/library/trainer@{digest}", f"docker.io/library/trainer@{other}", ""]
    for pod, image_id in zip(job.workers(), pulled, strict=True):
        job.pods[pod.name] = replace(pod, image_id=image_id)
    job.round()
    assert job.status.images == {"trainer": f"trainer@{digest}", "coordinator": "operator:1"}
    job.fail(job.workers()[1], exit_code=1)
    job.run_rounds(2)
    assert [pod.image for pod in job.workers()][1] == f"trainer@{digest}"
    job.spec = make_spec(suspend=True)
    job.outcome = Outcome(result="suspended", message="saved")
    job.run_rounds(4)
    assert job.status.images == {}
    assert job.status.last_images == {"trainer": f"trainer@{digest}", "coordinator": "operator:1"}


# --- losses ---------------------------------------------------------------------------------------


def test_a_failed_worker_is_counted_once_and_replaced_by_the_next_incarnation(
    job: Simulation,
) -> None:
    job.fail(job.workers()[1], exit_code=1, exit_message="boom")
    what = job.round()
    assert what.status.pod_failures == 1
    assert [e.reason for e in what.events] == ["WorkerLost", "WorkersCreated"]
    assert what.events[0].message == (
        "worker pod gpt-w1-1 on node n2 ended with exit code 1 (program failed): boom; "
        "a new pod takes its place, which counts against maxRestarts"
    )
    assert names_of(job) == ["gpt-w0-1", "gpt-w1-2", "gpt-w2-1"]
    job.round()
    assert len(job.status.handled_pods) == 1


@pytest.mark.parametrize("done", [0, 1, 2])
def test_an_operator_that_dies_after_writing_counts_a_failure_once(
    job: Simulation, done: int
) -> None:
    job.fail(job.workers()[0], exit_code=137, exit_reason="OOMKilled")
    job.round(crash_after=done)
    handled = job.status.handled_pods
    job.run_rounds(4)
    assert len(job.workers()) == 3
    assert job.status.handled_pods == handled


def test_a_deleted_worker_is_replaced_and_not_counted(job: Simulation) -> None:
    job.pods[job.workers()[0].name] = replace(job.workers()[0], terminating=True)
    what = job.round()
    assert what.status.pod_failures == 0
    assert [a.index for a in what.actions if isinstance(a, CreateWorker)] == [0]


def test_repeated_failures_wait_longer_each_time() -> None:
    simulation = Simulation(spec=make_spec(restartPolicy={"backoffSeconds": 10}))
    simulation.run_rounds(4)
    simulation.status = simulation.status.model_copy(update={"pod_failures": 1})
    for pod in simulation.workers():
        simulation.fail(pod, exit_code=1)
    what = simulation.round()
    assert what.status.pod_failures == 4
    assert not simulation.workers()
    simulation.tick(39)
    simulation.round()
    assert not simulation.workers()
    simulation.tick(2)
    simulation.round()
    assert len(simulation.workers()) == 3


def test_a_worker_that_keeps_failing_beside_two_that_train_waits_longer_and_fails_nothing() -> None:
    simulation = Simulation(spec=make_spec(restartPolicy={"maxRestarts": 2}))
    simulation.run_rounds(4)
    for _ in range(6):
        for pod in simulation.workers():
            if pod.index == 2:
                simulation.fail(pod, exit_code=1)
        simulation.run_rounds(10)
    assert simulation.status.phase == "Running"
    assert simulation.status.pod_failures >= 3
    simulation.run_rounds(40)
    assert simulation.status.pod_failures == 0
    assert len(simulation.workers()) == 3


def keeps_failing(exit_code: int, **said: str) -> Simulation:
    """A job of two restarts, all of whose workers have ended so six times."""
    policy = {"maxRestarts": 2, "backoffSeconds": 0}
    simulation = Simulation(spec=make_spec(restartPolicy=policy))
    simulation.run_rounds(2)
    for _ in range(6):
        for pod in simulation.workers():
            simulation.fail(pod, exit_code, **said)
        simulation.round()
    return simulation


def test_workers_that_keep_failing_without_a_step_fail_the_job() -> None:
    simulation = keeps_failing(exit_code=1)
    assert simulation.status.phase == "Failed"
    assert "spec.restartPolicy.maxRestarts=2" in simulation.status.message


def test_an_init_container_that_keeps_failing_fails_the_job_and_no_node_is_avoided() -> None:
    said = {"ended_container": "packages", "exit_message": "ERROR: No matching distribution\n"}
    status = keeps_failing(exit_code=1, **said).status
    assert (status.phase, status.excluded_nodes, status.suspected_nodes) == ("Failed", (), ())
    assert "(init container packages): ERROR: No matching distribution" in status.message


def test_containers_that_the_runtime_never_starts_fail_the_job_with_what_it_says() -> None:
    said = {"exit_reason": "StartError", "exit_message": 'exec: "trian": not found in $PATH'}
    simulation = keeps_failing(exit_code=128, **said)
    assert simulation.status.phase == "Failed"
    assert simulation.status.restarts.application == 0
    message = simulation.status.message
    assert "spec.restartPolicy.maxRestarts=2" in message
    assert 'the container runtime reports StartError: exec: "trian": not found in $PATH' in message


@pytest.mark.parametrize(("lost", "phase"), [(2, "Running"), (3, "Failed")])
def test_more_losses_of_pods_and_nodes_than_the_budget_fail_the_job(lost: int, phase: str) -> None:
    simulation = Simulation(spec=make_spec(restartPolicy={"maxInfrastructureRestarts": 2}))
    simulation.run_rounds(4)
    restarts = simulation.status.restarts.model_copy(update={"infrastructure": lost})
    simulation.status = simulation.status.model_copy(update={"restarts": restarts})
    simulation.round()
    assert simulation.status.phase == phase
    assert ("maxInfrastructureRestarts=2" in simulation.status.message) == (phase == "Failed")


@pytest.mark.parametrize("code", [2, 126, 127])
def test_an_exit_code_that_no_retry_mends_fails_the_job(job: Simulation, code: int) -> None:
    job.fail(job.workers()[0], exit_code=code)
    job.round()
    assert job.status.phase == "Failed"
    assert f"exit code {code}" in job.status.message


def test_the_logs_of_the_last_failed_worker_of_each_index_are_kept(job: Simulation) -> None:
    for _ in range(3):
        job.fail(next(pod for pod in job.workers() if pod.index == 0), exit_code=143)
        job.run_rounds(2)
    ended = [pod for pod in job.pods.values() if pod.phase == "Failed"]
    assert [pod.name for pod in ended] == ["gpt-w0-3"]


def test_a_worker_that_becomes_unreadable_is_lost_replaced_and_named_in_an_event(
    job: Simulation,
) -> None:
    edited = replace(job.workers()[1], role="", index=-1)
    job.pods[edited.name] = edited
    what = job.round()
    assert [e.reason for e in what.events] == ["WorkersCreated", "PodUnreadable"]
    assert edited.name in what.events[1].message
    assert edited not in [a.pod for a in what.actions if isinstance(a, DeletePod)]
    assert what.status.replicas == 2
    assert names_of(job) == ["gpt-w0-1", "gpt-w1-2", "gpt-w2-1"]


Take = Callable[[Simulation, Pod], None]
TAKES = (Simulation.take_label, Simulation.take_owner)
"""Ways in which somebody takes a pod from its job."""


@pytest.mark.parametrize("take", TAKES)
def test_who_takes_each_new_pod_from_its_job_makes_new_ones_come_ever_later(
    job: Simulation, take: Take
) -> None:
    made = []
    for _ in range(60):
        for pod in job.workers():
            take(job, pod)
        made += [a for a in job.round().actions if isinstance(a, CreateWorker)]
        job.tick(1)
    assert [made.count(action) for action in made] == [1] * len(made)
    assert {action.incarnation for action in made} == {2, 3, 4, 5, 6, 7}, (
        "after 0, 1, 2, 4, 8 and 16 s"
    )


@pytest.mark.parametrize("take", TAKES)
def test_pods_that_are_taken_fail_no_job_and_many_at_once_count_little(
    job: Simulation, take: Take
) -> None:
    job.spec["restartPolicy"] = {"maxRestarts": 0}
    job.outcome, job.unanswered_since = None, job.now  # it trains no more
    for pod in job.workers():
        take(job, pod)
        job.round()
    assert job.status.pod_failures == 2, "the first one has no back-off"
    job.tick(300)
    job.round()
    assert job.status.phase != "Failed"


@pytest.mark.parametrize("take", TAKES)
def test_a_coordinator_that_is_taken_is_not_made_again_at_once_each_time(
    job: Simulation, take: Take
) -> None:
    terms = set()
    for _ in range(20):
        for pod in [pod for pod in job.pods.values() if pod.role == names.COORDINATOR]:
            take(job, pod)
        terms |= {a.term for a in job.round().actions if isinstance(a, CreateCoordinator)}
        job.tick(1)
    assert terms == {2, 3, 4, 5, 6}, "after 0, 1, 2, 4 and 8 s"


def test_a_pod_of_another_owner_is_named_once_and_never_touched(job: Simulation) -> None:
    taken = job.workers()[1]
    job.take_owner(taken)
    job.spec["suspend"] = True
    job.outcome = Outcome(result="suspended", message="saved")
    plans = [job.round() for _ in range(3)]
    events = {e for what in plans for e in what.events if e.reason == "PodUnreadable"}
    (event,) = events
    assert event.message.startswith(f"pod {taken.name} takes no part in the job: somebody has ")
    touched = {a.pod.uid for what in plans for a in what.actions if isinstance(a, DeletePod)}
    assert touched and taken.uid not in touched


def test_an_unreadable_pod_leaves_with_the_others_at_a_suspension(job: Simulation) -> None:
    edited = replace(job.workers()[1], role="", index=-1)
    job.pods[edited.name] = edited
    job.spec["suspend"] = True
    job.outcome = Outcome(result="suspended", message="saved")
    job.run_rounds()
    assert not job.pods
    assert job.status.phase == "Suspended"


# --- unresponsive nodes ---------------------------------------------------------------------------


def test_an_unresponsive_node_is_avoided_by_the_replacement_and_its_pod_is_deleted(
    job: Simulation,
) -> None:
    victim = job.kill_node("n2")[0]
    assert job.round().actions == (), "its kubelet may still report that only the process ended"
    job.tick(2)
    what = job.round()
    assert [a.pod.name for a in what.actions if isinstance(a, DeletePod)] == [victim.name]
    assert [a.excluded_nodes for a in what.actions if isinstance(a, CreateWorker)] == [("n2",)]
    assert what.status.suspected_nodes == ("n2",)
    assert what.status.node_failures == {"n2": 1}
    assert [e.reason for e in what.events] == ["NodeLost", "WorkersCreated"]


def test_training_goes_on_with_two_while_no_other_node_fits_and_with_three_when_the_node_is_back(
    job: Simulation,
) -> None:
    job.kill_node("n2")
    job.run_rounds(6)
    assert job.status.phase == "Running"
    assert job.status.world_size == 2
    assert job.status.holds("Degraded")
    assert "no node fits" in (job.status.condition("Degraded") or pytest.fail("missing")).message
    made = len(job.created)
    job.run_rounds(6)
    assert len(job.created) == made, "a pod that waits for a node is not made again and again"
    job.start_node("n2")
    job.run_rounds(6)
    assert job.status.world_size == 3
    assert job.status.suspected_nodes == ()
    assert job.status.node_failures == {"n2": 1}


def test_a_node_that_failed_twice_is_excluded_and_its_replacement_is_not_made_again_and_again(
    job: Simulation,
) -> None:
    for _ in range(2):
        job.kill_node("n2")
        job.run_rounds(4)
        job.start_node("n2")
        job.run_rounds(6)
    assert job.status.excluded_nodes == ("n2",)
    made = len(job.created)
    job.run_rounds(6)
    assert len(job.created) == made
    assert job.status.world_size == 2


def test_a_pod_stuck_on_a_dead_node_is_forced_only_when_its_volumes_allow_it(
    job: Simulation,
) -> None:
    victim = replace(job.kill_node("n2")[0], terminating=True)
    job.pods[victim.name] = victim
    observed = job.observed()
    not_ready = replace(observed.nodes["n2"], ready=False, not_ready_seconds=31)
    safe = replace(observed, nodes={"n2": not_ready})
    forced = [
        a for a in plan(job.job(), safe, job.now).actions if isinstance(a, DeletePod) and a.force
    ]
    assert [a.pod.name for a in forced] == [victim.name]
    block_volume = replace(safe, claim=Claim("shared", ("ReadWriteOnce",)))
    assert not [
        a
        for a in plan(job.job(), block_volume, job.now).actions
        if isinstance(a, DeletePod) and a.force
    ]


def test_an_invalid_job_without_pods_is_not_looked_at_again_before_it_changes(
    job: Simulation,
) -> None:
    invalid = make_invalid_job(job.job())
    assert plan(invalid, Observed(), job.now).requeue_after is None
    assert plan(invalid, job.observed(), job.now).requeue_after == STEADY_SECONDS
    job.lose_coordinator()
    assert plan(invalid, job.observed(), job.now).requeue_after == REQUEUE_SECONDS


def test_a_pod_that_only_a_finalizer_keeps_is_not_forced_over_and_over(job: Simulation) -> None:
    """A tenant may give their pods a finalizer, and a node that never was."""
    victim = replace(job.kill_node("n2")[0], terminating=True)

    def forces(pod: Pod) -> list[DeletePod]:
        job.pods[pod.name] = pod
        gone = replace(job.observed(), nodes={"n2": Node("n2", exists=False)})
        actions = plan(job.job(), gone, job.now).actions
        return [a for a in actions if isinstance(a, DeletePod) and a.force]

    assert len(forces(victim)) == 1
    assert forces(replace(victim, is_forced=True)) == []


def test_failures_on_nodes_that_were_invented_are_not_remembered(job: Simulation) -> None:
    for pod in job.workers()[:2]:
        job.pods[pod.name] = replace(pod, phase="Failed", exit_code=None)
    known, ghost = (pod.node for pod in job.pods.values() if pod.phase == "Failed")
    observed = replace(job.observed(), unknown_nodes=frozenset({ghost}))
    assert set(plan(job.job(), observed, job.now).status.node_failures) == {known}


def test_a_worker_that_sends_heartbeats_is_kept_although_its_node_is_not_ready(
    job: Simulation,
) -> None:
    observed = job.observed()
    nodes = {"n2": replace(job._node("n2"), ready=False, not_ready_seconds=100)}
    assert plan(job.job(), replace(observed, nodes=nodes), job.now).actions == ()
    unreported = replace(observed.coordinator, status=None)
    actions = plan(
        job.job(), replace(observed, nodes=nodes, coordinator=unreported), job.now
    ).actions
    assert any(isinstance(a, DeletePod) and a.pod.node == "n2" for a in actions)


@pytest.mark.parametrize(
    ("answers", "not_ready_seconds", "is_lost"),
    [(True, 10, True), (False, 10, False), (False, 61, True)],
)
def test_a_node_that_is_not_ready_loses_no_worker_while_no_coordinator_could_hear_it(
    job: Simulation, answers: bool, not_ready_seconds: int, is_lost: bool
) -> None:
    """After an outage of the API server, Kubernetes reported the node of the last live worker, and
    of all memory snapshots, as not Ready for some seconds. A new coordinator was not up yet.
    """
    node = replace(job._node("n2"), ready=False, not_ready_seconds=not_ready_seconds)
    view = job.observed().coordinator if answers else CoordinatorView()
    if view.status is not None:
        others = [m for m in view.status.members if m.node != "n2"]
        view = replace(view, status=view.status.model_copy(update={"members": tuple(others)}))
    observed = replace(job.observed(), nodes={"n2": node}, coordinator=view)
    deleted = [a for a in plan(job.job(), observed, job.now).actions if isinstance(a, DeletePod)]
    assert any(a.pod.node == "n2" and a.pod.role == "worker" for a in deleted) is is_lost


# --- the coordinator ------------------------------------------------------------------------------


def test_a_dead_coordinator_gets_a_successor_under_a_higher_term(job: Simulation) -> None:
    job.lose_coordinator()
    job.tick(UNANSWERED_SECONDS - 0.1)
    assert not [a for a in job.round().actions if isinstance(a, CreateCoordinator)]
    job.tick(0.1)
    what = job.round()
    assert what.status.coordinator_term == 2
    created = next(a for a in what.actions if isinstance(a, CreateCoordinator))
    assert created.term == 2
    assert created.excluded_nodes == ("n1",)
    assert EnsureService(2) in what.actions
    (ended,) = (a for a in what.actions if isinstance(a, DeletePod))
    assert ended.grace_seconds == 1, "it may live, and its agents are to look for the successor"
    assert len(job.workers()) == 3, "the ranks go on training"


def test_a_coordinator_whose_container_is_restarted_by_its_kubelet_is_kept(job: Simulation) -> None:
    pod = job.coordinator()
    assert pod is not None
    job.pods[pod.name] = replace(
        pod, ready=False, waiting_reason="CrashLoopBackOff", exit_message="volume is not writable"
    )
    job.cut_off()
    job.tick(60)
    what = job.round()
    assert not [a for a in what.actions if isinstance(a, CreateCoordinator)]
    assert "volume is not writable" in what.status.message


def test_a_term_is_never_used_twice_even_if_the_operator_dies_before_making_the_pod(
    job: Simulation,
) -> None:
    job.lose_coordinator()
    job.tick(UNANSWERED_SECONDS)
    job.round(crash_after=0)
    pod = job.coordinator()
    assert pod is not None
    job.run_rounds(4)
    after = job.coordinator()
    assert after is not None
    assert after.term == job.status.coordinator_term == 3


# --- spec edits -----------------------------------------------------------------------------------


def test_a_newer_spec_is_sent_to_the_coordinator(job: Simulation) -> None:
    job.spec = make_spec(trainer={"training": {"steps": 900}})
    job.generation = 2
    assert PutDesired() in job.round().actions
    assert job.round().actions == ()


def test_nothing_is_sent_to_a_coordinator_that_does_not_answer(job: Simulation) -> None:
    """Each message would wait for its time-out, in the rounds of a thousand jobs at once."""
    answering = job.observed()
    dead = replace(answering, pods=tuple(p for p in answering.pods if p not in answering.workers))
    failing = replace(answering.coordinator, failures=1)
    newer = replace(job.job(), generation=2)
    for observed, expected in ((dead, 1), (replace(dead, coordinator=failing), 0)):
        assert len(report_lost(observed)) == len(update_coordinator(newer, observed)) == expected


def test_fewer_replicas_remove_the_highest_indexes(job: Simulation) -> None:
    job.spec, job.generation = make_spec(replicas=2), 2
    job.run_rounds(3)
    assert names_of(job) == ["gpt-w0-1", "gpt-w1-1"]


def test_spares_have_the_indexes_above_the_replicas_and_are_replaced_like_them() -> None:
    simulation = Simulation(spec=make_spec(replicas=2, spares=1))
    simulation.run_rounds(4)
    assert names_of(simulation) == ["gpt-w0-1", "gpt-w1-1", "gpt-w2-1"]
    simulation.fail(simulation.workers()[2], exit_code=143)
    simulation.run_rounds(2)
    assert names_of(simulation) == ["gpt-w0-1", "gpt-w1-1", "gpt-w2-2"]
    simulation.spec, simulation.generation = make_spec(replicas=2), 2
    simulation.run_rounds(3)
    assert names_of(simulation) == ["gpt-w0-1", "gpt-w1-1"]


def test_an_invalid_edit_makes_no_pods_and_takes_none_away(job: Simulation) -> None:
    broken = make_invalid_job(job.job())
    job.fail(job.workers()[0], exit_code=143)
    what = plan(broken, job.observed(), job.now)
    assert what.actions == ()
    assert what.status.phase == "Running"
    ready = what.status.condition("Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "InvalidSpec")


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (None, "ClaimMissing"),
        (Claim("shared", ("ReadWriteOnce",)), "ClaimNotShared"),
        (Claim("shared", deleting=True), "ClaimMissing"),
    ],
)
def test_a_claim_that_is_of_no_use_is_named_and_waited_for(
    claim: Claim | None, reason: str
) -> None:
    simulation = Simulation(claim=claim)
    what = simulation.round()
    assert what.actions == ()
    ready = what.status.condition("Ready")
    assert ready is not None
    assert ready.reason == reason
    assert "'shared'" in ready.message
    simulation.claim = Claim("shared")
    simulation.run_rounds(3)
    assert simulation.status.phase == "Running"


# --- suspension -----------------------------------------------------------------------------------


def test_suspending_lets_the_coordinator_save_and_then_gives_all_pods_back(job: Simulation) -> None:
    job.spec, job.generation = make_spec(suspend=True), 2
    what = job.round()
    assert what.actions == (PutDesired(),)
    assert not what.status.holds("Suspended")
    job.outcome = Outcome(result="suspended", message="saved")
    job.run_rounds(4)
    assert job.pods == {}
    assert job.status.holds("Suspended")
    assert job.status.phase == "Suspended"


def test_a_pod_that_may_have_missed_sigterm_is_not_waited_for_as_long(
    job: Simulation,
) -> None:
    """Its process had no handler yet. Kubernetes would wait for all that a checkpoint may take."""
    young, next_one, _ = job.workers()
    job.pods[young.name] = replace(young, began=job.now.isoformat())
    job.pods[next_one.name] = replace(next_one, phase="Pending")
    job.spec, job.generation = make_spec(suspend=True), 2
    job.outcome = Outcome(result="suspended", message="saved")
    deleted = [action for action in job.round().actions if isinstance(action, DeletePod)]
    graces = {one.pod.name: one.grace_seconds for one in deleted}
    assert (graces.pop(young.name), graces.pop(next_one.name)) == (30, 30)
    assert list(graces.values()) == [None] * 2


def test_while_only_pods_that_end_are_left_the_message_names_them(job: Simulation) -> None:
    job.spec, job.generation = make_spec(suspend=True), 2
    job.outcome = Outcome(result="suspended", message="saved")
    last = job.workers()[0]
    job.pods = {last.name: replace(last, terminating=True)}
    job.run_rounds(1)
    assert job.status.message == f"suspending: waiting for the end of {last.name}"


def test_a_suspended_job_resumes_under_a_higher_term_with_new_pods(job: Simulation) -> None:
    job.spec, job.generation = make_spec(suspend=True), 2
    job.outcome = Outcome(result="suspended", message="saved")
    job.run_rounds(4)
    job.spec, job.generation = make_spec(), 3
    job.run_rounds(4)
    assert names_of(job) == ["gpt-w0-2", "gpt-w1-2", "gpt-w2-2"]
    assert job.status.coordinator_term == 2
    assert job.status.phase == "Running"
    assert not job.status.holds("Suspended")


def test_a_job_keeps_its_key_for_life_since_the_secret_with_its_token_stays(
    job: Simulation,
) -> None:
    assert job.status.token_key == "0a0a0a0a"
    job.token_key = "0b0b0b0b"
    job.run_rounds(3)
    job.spec, job.generation = make_spec(suspend=True), 2
    job.outcome = Outcome(result="suspended", message="saved")
    job.run_rounds(6)
    assert job.status.holds("Suspended")
    job.outcome = None
    job.spec, job.generation = make_spec(), 3
    job.run_rounds(6)
    assert job.workers()
    assert job.status.token_key == "0a0a0a0a"


def test_a_job_that_is_made_suspended_gets_no_pods() -> None:
    simulation = Simulation(spec=make_spec(suspend=True))
    simulation.run_rounds(2)
    assert simulation.created == []
    assert simulation.status.holds("Suspended")


def suspend_without_its_coordinator(job: Simulation) -> None:
    """It dies, and somebody suspends the job."""
    job.lose_coordinator()
    job.tick(UNANSWERED_SECONDS)
    job.spec, job.generation = make_spec(suspend=True), 2


def test_suspending_waits_for_the_successor_of_a_coordinator_that_is_gone(job: Simulation) -> None:
    workers = names_of(job)
    suspend_without_its_coordinator(job)
    job.round()
    assert job.created[-1] == "gpt-c2"
    message = job.round().status.message
    assert message.startswith("coordinator pod gpt-c2 waits for a node")
    job.run_rounds(4)
    assert names_of(job) == workers, "they hold steps that no checkpoint has"
    assert not job.status.holds("Suspended")
    job.outcome = Outcome(result="suspended", message="saved")
    job.run_rounds(4)
    assert job.status.holds("Suspended")


@pytest.mark.parametrize("node", ["", "n3"])
def test_suspending_waits_for_a_successor_for_the_grace_period_from_when_it_may_start(
    job: Simulation, node: str
) -> None:
    suspend_without_its_coordinator(job)
    job.round()
    job.tick(100)
    if node:
        placed = job.now.isoformat()
        job.pods["gpt-c2"] = replace(job.pods["gpt-c2"], node=node, placed=placed)
    job.tick(100)
    job.round()
    assert bool(job.workers()) == bool(node)
    job.tick(30)
    job.round()
    assert job.workers() == []


def test_the_token_is_sent_again_for_a_successor_whose_containers_do_not_come(
    job: Simulation,
) -> None:
    suspend_without_its_coordinator(job)
    job.round()
    placed = job.now.isoformat()
    job.pods["gpt-c2"] = replace(job.pods["gpt-c2"], node="n3", placed=placed)
    job.tick(10)
    assert EnsureToken() in job.round().actions


def test_a_pod_whose_node_is_gone_does_not_keep_a_job_from_being_suspended(job: Simulation) -> None:
    job.kill_node("n2")
    job.spec = make_spec(suspend=True, nodeFailurePolicy={"forceDeleteSeconds": 10})
    job.generation, job.outcome = 2, Outcome(result="suspended", message="saved")
    job.run_rounds(4)
    assert [pod.node for pod in job.pods.values()] == ["n2"]
    assert not job.status.holds("Suspended")
    job.unready_nodes.add("n2")
    job.run_rounds(3)
    assert job.pods == {}
    assert job.status.holds("Suspended")


def test_suspending_makes_no_coordinator_where_no_worker_lives(job: Simulation) -> None:
    for pod in [*job.pods.values()]:
        job.fail(pod)
    job.spec, job.generation = make_spec(suspend=True), 2
    job.run_rounds(3)
    assert job.status.holds("Suspended")
    assert "gpt-c2" not in job.created


def test_a_job_that_never_trained_is_suspended_at_once() -> None:
    simulation = Simulation()
    simulation.round()
    simulation.pods["gpt-w0-1"] = replace(simulation.pods["gpt-w0-1"], phase="Running")
    simulation.spec, simulation.generation = make_spec(suspend=True), 2
    simulation.round()
    assert simulation.workers() == []


def test_the_coordinator_that_has_saved_is_deleted_last(job: Simulation) -> None:
    """If the request for a worker is refused, it still says that nothing is to be saved."""
    job.spec, job.generation = make_spec(suspend=True), 2
    job.outcome = Outcome(result="suspended", message="saved")
    *_, last = job.round().actions
    assert isinstance(last, DeletePod)
    assert last.pod.name == "gpt-c1"


def test_a_suspension_taken_back_in_the_middle_starts_anew(job: Simulation) -> None:
    job.outcome = Outcome(result="suspended", message="saved")
    job.run_rounds(6)
    assert len(job.workers()) == 3
    assert job.status.coordinator_term == 2


# --- the end --------------------------------------------------------------------------------------


def test_completion_is_written_before_the_pods_are_removed(job: Simulation) -> None:
    job.outcome = Outcome(result="completed", message="trained 500 steps")
    what = job.round()
    assert what.actions == ()
    assert what.status.holds("Complete")
    assert what.status.phase == "Succeeded"
    assert what.status.completion_time is not None
    assert [e.reason for e in what.events] == ["Completed"]
    job.run_rounds(7)
    assert job.pods == {}
    assert job.status.holds("Complete")


def test_workers_end_by_themselves_and_keep_their_logs(job: Simulation) -> None:
    job.outcome = Outcome(result="completed", message="trained 500 steps")
    job.round()
    assert job.round().actions == ()
    for pod in job.workers():
        job.pods[pod.name] = replace(pod, phase="Succeeded", exit_code=0)
    job.run_rounds(3)
    assert sorted(job.pods) == ["gpt-w0-1", "gpt-w1-1", "gpt-w2-1"]


def test_a_worker_that_ended_well_is_not_replaced_before_the_outcome_is_known(
    job: Simulation,
) -> None:
    for pod in job.workers():
        job.pods[pod.name] = replace(pod, phase="Succeeded", exit_code=0, ended=job.now.isoformat())
    assert not [a for a in job.round().actions if isinstance(a, CreateWorker)]
    job.tick(11)
    assert [a.index for a in job.round().actions if isinstance(a, CreateWorker)] == [0, 1, 2]


def test_a_failed_outcome_fails_the_job_with_its_message(job: Simulation) -> None:
    job.outcome = Outcome(result="failed", message="all checkpoints are corrupt", exit_code=1)
    job.run_rounds(3)
    assert job.status.holds("Failed")
    assert job.status.message == "all checkpoints are corrupt"


def test_clean_pod_policy_none_keeps_the_pods() -> None:
    simulation = Simulation(spec=make_spec(cleanPodPolicy="None"))
    simulation.run_rounds(4)
    simulation.outcome = Outcome(result="completed", message="done")
    simulation.run_rounds(3)
    assert len(simulation.pods) == 4


def test_a_finished_job_is_deleted_after_its_time_to_live() -> None:
    simulation = Simulation(spec=make_spec(ttlSecondsAfterFinished=100))
    simulation.run_rounds(4)
    simulation.outcome = Outcome(result="completed", message="done")
    simulation.round()
    simulation.tick(20)
    what = simulation.round()
    assert what.requeue_after == 80
    simulation.tick(101)
    assert DeleteJob() in simulation.round().actions
    assert simulation.deleted


def test_a_job_past_its_deadline_fails() -> None:
    simulation = Simulation(spec=make_spec(activeDeadlineSeconds=60))
    simulation.run_rounds(4)
    simulation.tick(60)
    simulation.round()
    condition = simulation.status.condition("Failed")
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "DeadlineExceeded")


def test_the_deadline_of_a_job_that_trains_is_not_slept_through() -> None:
    simulation = Simulation(spec=make_spec(activeDeadlineSeconds=70))
    simulation.run_rounds(4)
    simulation.tick(10)
    pause = simulation.round().requeue_after
    assert pause is not None
    simulation.tick(pause)
    simulation.round()
    condition = simulation.status.condition("Failed")
    assert condition is not None
    assert condition.status == "True"


def test_an_image_that_cannot_be_had_is_named_at_once_and_fails_a_job_that_never_trained() -> None:
    simulation = Simulation()
    simulation.round()
    simulation.round()
    for pod in simulation.workers():
        waiting = replace(
            pod, waiting_reason="ErrImagePull", waiting_message="not found", image="nowhere/x:1"
        )
        simulation.pods[pod.name] = waiting
    what = simulation.round()
    running = what.status.condition("Running")
    assert running is not None
    assert running.reason == "ImageError"
    assert "nowhere/x:1" in running.message
    simulation.tick(61)
    simulation.round()
    assert simulation.status.phase == "Failed"


@pytest.mark.parametrize("container", ["fetch", "regroup-agent"])
def test_an_image_of_another_container_is_named_and_waited_for(container: str) -> None:
    """A sidecar keeps nobody from training, and the agent's image is an administrator's."""
    simulation = Simulation()
    simulation.round()
    simulation.round()
    for pod in simulation.workers():
        waits = {"waiting_reason": "InvalidImageName", "waiting_container": container}
        simulation.pods[pod.name] = replace(pod, **waits)  # type: ignore[arg-type]
    simulation.round()
    simulation.tick(61)
    simulation.round()
    assert simulation.status.phase == "Pending"
    assert f"cannot pull the image of container {container} of pod" in simulation.status.message


def test_the_first_error_of_a_registry_after_a_long_wait_for_a_node_fails_no_job() -> None:
    """The registry is away for a moment while nodes are added."""
    simulation = Simulation()
    simulation.round()
    simulation.round()
    simulation.tick(3600)
    names = [pod.name for pod in simulation.workers()]

    def wait_with(reason: str) -> None:
        for name in names:
            simulation.pods[name] = replace(simulation.pods[name], waiting_reason=reason)
        simulation.round()

    def has_failed() -> bool:
        return simulation.status.phase == "Failed"

    wait_with("ErrImagePull")
    simulation.tick(50)
    wait_with("ImagePullBackOff")
    assert not has_failed()
    wait_with("")
    simulation.tick(50)
    wait_with("ErrImagePull")
    simulation.round()
    assert not has_failed(), "the time between two errors does not count"
    simulation.tick(61)
    simulation.round()
    assert has_failed()


def test_workers_whose_pulls_fail_one_after_the_other_for_a_moment_fail_no_job() -> None:
    simulation = Simulation()
    simulation.round()
    simulation.round()
    names = [pod.name for pod in simulation.workers()]

    def let_wait(waiting: list[str], seconds: float) -> None:
        for name in names:
            reason = "ErrImagePull" if name in waiting else ""
            simulation.pods[name] = replace(simulation.pods[name], waiting_reason=reason)
        simulation.round()
        simulation.tick(seconds)

    let_wait(names[:1], 40)
    let_wait(names[:2], 5)
    let_wait(names[1:2], 40)
    let_wait(names[2:], 40)
    simulation.round()
    assert not simulation.status.holds("Failed"), "each was mended within a minute"
    simulation.tick(61)
    simulation.round()
    assert simulation.status.holds("Failed")


def test_an_image_that_was_pulled_while_the_spec_was_invalid_is_not_held_against_the_job() -> None:
    simulation = Simulation()
    simulation.round()
    simulation.round()
    pod = simulation.workers()[0]
    simulation.pods[pod.name] = replace(pod, waiting_reason="ErrImagePull")
    simulation.round()
    assert simulation.status.image_error_pod == pod.name
    simulation.pods[pod.name] = pod
    what = plan(make_invalid_job(simulation.job()), simulation.observed(), simulation.now)
    assert (what.status.image_error_time, what.status.image_error_pod) == (None, None)


def test_a_worker_that_was_placed_on_a_node_that_is_not_ready_is_replaced(
    job: Simulation,
) -> None:
    """The node lost its power, and the scheduler placed a pod there before Kubernetes noticed."""
    worker = job.workers()[0]
    placed = replace(worker, phase="Pending", node="n9", ready=False, ip="")
    job.pods[placed.name] = placed
    job.dead_nodes.add("n9")
    assert not [one for one in job.round().actions if isinstance(one, DeletePod)]
    job.unready_nodes.add("n9")
    (deleted,) = [one for one in job.round().actions if isinstance(one, DeletePod)]
    assert deleted.pod.name == placed.name
    assert "unresponsive node" in deleted.why
    job.run_rounds(3)
    assert job.status.pod_failures == 0
    assert {(pod.index, pod.phase) for pod in job.workers()} == {
        (0, "Running"),
        (1, "Running"),
        (2, "Running"),
    }


def test_a_registry_that_is_away_does_not_fail_a_job_that_trains(job: Simulation) -> None:
    job.fail(job.workers()[0], exit_code=143)
    job.round()
    new = next(pod for pod in job.workers() if pod.index == 0)
    job.pods[new.name] = replace(new, waiting_reason="ErrImagePull", image="trainer:1")
    job.tick(1000)
    job.round()
    assert job.status.phase == "Running"
    assert "trainer:1" in job.status.message


@pytest.mark.parametrize("seed", range(3))
def test_an_operator_that_dies_over_and_over_makes_two_thousand_workers_and_counts_each_lost_once(
    seed: int,
) -> None:
    bounds = {"minReplicas": 2, "maxReplicas": 2000}
    policy = {"maxRestarts": -1, "backoffSeconds": 0}
    simulation = Simulation(make_spec(replicas=2000, elasticPolicy=bounds, restartPolicy=policy))
    source, lost = random.Random(seed), 0
    for _ in range(40):
        workers = simulation.workers()
        for pod in source.sample(workers, min(5, len(workers))):
            simulation.fail(pod)
            lost += 1
        simulation.round(crash_after=source.randint(0, 120))
        simulation.tick(0.2)
    while simulation.round().actions:
        simulation.tick(0.2)
    assert lost == 195
    assert simulation.status.pod_failures == lost
    assert [pod.index for pod in simulation.workers()] == list(range(2000))
    assert len(simulation.created) == len(set(simulation.created))
    assert len([pod for pod in simulation.pods.values() if pod.role == "coordinator"]) == 1


# --- any sequence ---------------------------------------------------------------------------------

FAULTS = st.one_of(
    st.tuples(st.just("kill"), st.sampled_from(NODES)),
    st.tuples(st.just("start"), st.sampled_from(NODES)),
    st.tuples(st.just("fail"), st.integers(0, 2)),
    st.tuples(st.just("delete"), st.integers(0, 2)),
    st.tuples(st.just("unreachable"), st.just(0)),
    st.tuples(st.just("dies"), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, 6)),
    st.tuples(st.just("round"), st.integers(1, 3)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(FAULTS, max_size=25))
def test_whatever_happens_names_are_used_once_terms_rise_and_in_the_end_all_train(
    faults: list[tuple[str, int | str]],
) -> None:
    policy = {"excludeAfterFailures": 0}
    spec = make_spec(
        nodeFailurePolicy=policy, restartPolicy={"maxRestarts": -1, "backoffSeconds": 0}
    )
    simulation = Simulation(spec=spec)
    simulation.run_rounds(3)
    terms = [simulation.status.coordinator_term]
    for kind, value in faults:
        _inject(simulation, kind, value)
        simulation.run_pods()
        simulation.tick(1)
        terms.append(simulation.status.coordinator_term)
        assert len({pod.index for pod in simulation.workers()}) == len(simulation.workers())
    for node in NODES:
        simulation.start_node(node)
    simulation.reconnect()
    simulation.lost_since = {}
    simulation.run_rounds(20)
    assert terms == sorted(terms)
    assert [pod.index for pod in simulation.workers()] == [0, 1, 2]
    assert {pod.phase for pod in simulation.workers()} == {"Running"}
    assert simulation.status.phase == "Running"
    assert simulation.round().actions == ()


def _inject(simulation: Simulation, kind: str, value: int | str) -> None:
    workers = {pod.index: pod for pod in simulation.workers()}
    match kind, value:
        case "kill", str(node):
            simulation.kill_node(node)
        case "start", str(node):
            simulation.start_node(node)
        case "fail", int(index) if index in workers and workers[index].phase == "Running":
            simulation.fail(workers[index])
        case "delete", int(index) if index in workers:
            simulation.pods[workers[index].name] = replace(workers[index], terminating=True)
        case "unreachable", _:
            simulation.cut_off()
        case "dies", _:
            simulation.lose_coordinator()
        case "crash", int(done):
            simulation.round(crash_after=done)
        case "round", int(count):
            simulation.run_rounds(count)
