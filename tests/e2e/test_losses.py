"""Whatever dies, training goes on: on a real cluster of three nodes, with the operator installed by
Helm.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.jobs import Job, make_job
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def test_a_killed_worker_pod_is_replaced_and_no_sample_is_lost(installation: Installation) -> None:
    job = installation.start(make_job("pod-kill", steps=50_000))
    saved = job.wait_until_whole_and_saved()
    victim = installation.worker_of_rank(job, 0)
    installation.kubectl(
        "delete", "pod", victim, "-n", job.namespace, "--grace-period=0", "--force"
    )
    (recovery,) = wait_until("the recovery", job.losses, seconds=60)
    assert (recovery["restoredFrom"], recovery["lostSteps"]) == ("Peers", 0)
    assert recovery["resumedFromStep"] >= saved
    job.wait_for_ranks(3, seconds=120)
    assert victim not in {pod["metadata"]["name"] for pod in job.pods("worker")}
    job.suspend()
    assert installation.audit(job) == []


def test_a_node_that_loses_power_costs_seconds_though_kubernetes_still_calls_it_ready(
    installation: Installation,
) -> None:
    job = installation.start(make_job("node-kill", steps=50_000))
    job.wait_until_whole_and_saved()
    with installation.lost_node_of_rank_0(job) as node:
        (recovery,) = wait_until("the recovery", job.losses, seconds=40)
        assert installation.node_is_ready(node), "Kubernetes noticed first: the test proves nothing"
        assert recovery["cause"] == "infrastructure"
        assert recovery["detectSeconds"] <= 3
        assert recovery["worldSizeAfter"] == 2
        assert (recovery["restoredFrom"], recovery["lostSteps"]) == ("Peers", 0)
        step = job.step()
        wait_until("training to go on with two workers", lambda: job.step() > step, seconds=60)
    job.wait_for_ranks(3, seconds=180)
    job.patch(suspend=True)
    job.wait_for_condition("Suspended", seconds=120)
    assert installation.audit(job) == []


def test_training_does_not_notice_that_the_coordinator_died(installation: Installation) -> None:
    job = installation.start(make_job("coordinator-kill", steps=800))
    job.wait_until_whole_and_saved()
    generations = installation.generations(job)
    before = job.coordinator()["metadata"]["name"]
    installation.kubectl(
        "delete", "pod", before, "-n", job.namespace, "--grace-period=0", "--force"
    )
    wait_until(
        "the next coordinator", lambda: job.coordinator()["metadata"]["name"] != before, seconds=60
    )
    job.wait_for_condition("Complete", seconds=240)
    assert job.losses() == []
    assert installation.generations(job) == generations
    assert installation.audit(job) == []


NEXT_STEP_SECONDS = 12.0
"""From the loss of the node that holds the coordinator and a worker to the next committed step."""


def test_the_loss_of_the_node_of_coordinator_and_a_worker_costs_twelve_seconds_at_most(
    installation: Installation,
) -> None:
    with installation.cordoned_node_of_operator():
        job = installation.start(make_job("leader-kill", steps=50_000))
        leader = wait_until("the coordinator's node", lambda: _placed(job), seconds=60)
    job.wait_until_whole_and_saved()
    volume, node = installation.volume(job), str(leader["spec"]["nodeName"])
    former = max(volume.announced())
    with installation.lost_node(node, str(leader["metadata"]["name"])):
        cut = time.monotonic()
        wait_until("the next step", lambda: volume.first_step_after(former), seconds=90, every=0.1)
        seconds = time.monotonic() - cut
        print(f"the next step was on the volume {seconds:.1f} s after the power cut")
        assert installation.node_is_ready(node), "Kubernetes noticed first: the test proves nothing"
        assert seconds <= NEXT_STEP_SECONDS
    job.wait_for_ranks(3, seconds=180)
    assert job.status()["coordinatorTerm"] == 2
    job.suspend()
    assert installation.audit(job) == []


def _placed(job: Job) -> dict[str, Any] | None:
    """The coordinator's pod once it has a node."""
    leader = next(iter(job.pods("coordinator")), None)
    return leader if leader and leader["spec"].get("nodeName") else None


def test_recovery_from_a_node_loss_needs_no_operator(installation: Installation) -> None:
    job = installation.start(make_job("no-operator", steps=50_000))
    job.wait_until_whole_and_saved()
    generations = installation.generations(job)
    with contextlib.ExitStack() as until_reported:
        with installation.without_operator():
            until_reported.enter_context(installation.lost_node_of_rank_0(job))
            wait_until(
                "a new generation",
                lambda: installation.generations(job) > generations,
                seconds=40,
            )
            before = installation.committed_steps(job)
            wait_until(
                "training to go on", lambda: installation.committed_steps(job) > before, seconds=40
            )
        wait_until("the status to report it", job.losses, seconds=90)
    job.patch(suspend=True)
    job.wait_for_condition("Suspended", seconds=120)
    assert job.status()["restarts"]["infrastructure"] == 1
    assert installation.audit(job) == []


TAKEOVER_SECONDS = 20.0
"""From the loss of the leader's node until the other replica leads. A Lease lasts 15 s."""


def test_the_other_replica_leads_when_the_leaders_node_loses_power(
    installation: Installation,
) -> None:
    with installation.cordoned_node_of_operator() as node:
        job = installation.start(make_job("no-leader", replicas=2, steps=50_000))
        job.wait_until_whole_and_saved()
        former, victim = installation.leader(), job.workers()[0]["metadata"]["name"]
        with installation.lost_node(node):
            cut = time.monotonic()
            wait_until("the other", lambda: installation.leader() not in ("", former), seconds=60)
            seconds = time.monotonic() - cut
            print(f"the other replica led {seconds:.1f} s after the power cut")
            assert installation.node_is_ready(node), "Kubernetes noticed first: this proves nothing"
            assert seconds <= TAKEOVER_SECONDS
            force = ("--grace-period=0", "--force")
            installation.kubectl("delete", "pod", victim, "-n", job.namespace, *force)
            wait_until("a replacement", lambda: len(job.losses()) == 1, seconds=60)
            job.wait_for_ranks(2, seconds=120)
    job.suspend()
    assert installation.audit(job) == []


def test_a_replacement_that_comes_to_a_node_without_power_is_made_again(
    installation: Installation,
) -> None:
    *others, dead = sorted(installation.nodes())
    with installation.cordoned(dead):
        job = installation.start(make_job("no-power", replicas=2, steps=50_000))
        job.wait_until_whole_and_saved()

    def is_placed() -> bool:
        return dead in {pod["spec"].get("nodeName") for pod in job.workers()}

    with installation.lost_node(dead):
        with installation.cordoned(*others):
            victim = job.workers()[0]["metadata"]["name"]
            force = ("--grace-period=0", "--force")
            installation.kubectl("delete", "pod", victim, "-n", job.namespace, *force)
            wait_until("a replacement there", is_placed, seconds=40)
        job.wait_for_ranks(2, seconds=120)
    job.suspend()
    assert installation.audit(job) == []


def test_a_rank_that_dies_while_the_api_server_is_away_is_replaced_all_the_same(
    installation: Installation,
) -> None:
    job = installation.start(make_job("no-api-server", steps=50_000))
    job.wait_until_whole_and_saved()
    volume, victim = installation.volume(job), installation.process_of_rank(job, 1)
    announced = len(volume.announced())
    with installation.without_api_server():
        gone = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        wait_until("a new generation", lambda: len(volume.announced()) > announced, seconds=40)
        before = len(volume.committed())
        wait_until("training to go on", lambda: len(volume.committed()) > before, seconds=40)
        wait_until("a minute to pass", lambda: time.monotonic() > gone + 60, seconds=60, every=1)
    step = job.step()
    wait_until("the operator to go on", lambda: job.step() > step, seconds=90)
    restarts = job.status()["restarts"]
    assert (restarts["application"], restarts["infrastructure"]) == (1, 0)
    assert job.status()["coordinatorTerm"] == 1
    assert {pod["metadata"]["name"] for pod in job.workers()} == {
        f"no-api-server-w{index}-1" for index in range(3)
    }
    job.suspend()
    assert installation.audit(job) == []


def test_a_name_server_that_is_unresponsive_holds_nobody_up(installation: Installation) -> None:
    job = installation.start(make_job("no-names", steps=50_000))
    job.wait_until_whole_and_saved()
    victim = installation.process_of_rank(job, 0)
    with installation.unresponsive_name_server():
        os.kill(victim, signal.SIGKILL)
        (recovery,) = wait_until("training to go on", job.losses, seconds=60)
    assert recovery["restoredFrom"] == "Peers"
    assert recovery["downSeconds"] < 10, "it is twenty by default, for two look-ups in turn"
    job.suspend()
    assert installation.audit(job) == []


def test_two_jobs_at_once_do_not_touch_each_other(installation: Installation) -> None:
    first = installation.start(make_job("left", steps=150, replicas=2))
    second = installation.start(make_job("right", steps=150, replicas=2))
    for job in (first, second):
        job.wait_for_condition("Complete", seconds=240)
        assert job.status()["progress"]["step"] == 150
        assert installation.audit(job) == []


def test_suspend_saves_and_gives_all_pods_back_and_resume_goes_on_there(
    installation: Installation,
) -> None:
    job = installation.start(make_job("pause", steps=800))
    wait_until("some steps", lambda: job.step() > 10, seconds=120)
    job.suspend()
    wait_until("its pods to go", lambda: not job.pods(), seconds=60)
    saved = job.status()["checkpoint"]["lastStep"]
    assert saved >= 10
    generations = installation.generations(job)
    job.patch(suspend=False)
    job.wait_for_condition("Complete", seconds=240)
    assert installation.resumed_from(job)[generations] == saved
    assert installation.audit(job) == []


def test_a_job_whose_coordinator_is_dead_when_it_is_suspended_saves_what_only_its_ranks_hold(
    installation: Installation,
) -> None:
    claim = {"persistentVolumeClaim": {"claimName": "shared"}}
    rare = {"intervalSteps": 50_000, "storage": claim}
    job = installation.start(make_job("dead-pause", steps=50_000, checkpoint=rare))
    job.wait_for_ranks(3)
    wait_until("some steps", lambda: job.step() > 10, seconds=120)
    former = job.coordinator()["metadata"]["name"]
    installation.kubectl(
        "delete", "pod", former, "-n", job.namespace, "--grace-period=0", "--force"
    )
    job.suspend()
    wait_until("its pods to go", lambda: not job.pods(), seconds=60)
    saved = job.status()["checkpoint"]["lastStep"]
    assert saved == installation.committed_steps(job) > 10
    assert job.status()["goodput"]["lostSteps"] == 0
    assert installation.audit(job) == []


def test_a_job_grows_and_shrinks_with_its_replicas(installation: Installation) -> None:
    job: Job = installation.start(make_job("scale", steps=1500, replicas=2, template=None))
    job.wait_for_ranks(2)
    installation.kubectl("scale", "trainingjob", job.name, "-n", job.namespace, "--replicas=3")
    job.wait_for_ranks(3)
    installation.kubectl("scale", "trainingjob", job.name, "-n", job.namespace, "--replicas=1")
    job.wait_for_ranks(1)
    assert job.status()["goodput"]["lostSteps"] == 0
    job.delete()
