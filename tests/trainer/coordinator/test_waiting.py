"""Why no generation trains: every reason, in virtual time."""

from __future__ import annotations

from regroup_trainer.coordinator.coordinator_status import make_status
from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.waiting import REASONS
from regroup_trainer.protocol.agent_messages import HeldSnapshot, HeldSnapshots
from regroup_trainer.protocol.generation import SnapshotNumber
from regroup_trainer.protocol.job_status import CoordinatorStatus
from tests.support.coordinator_simulation import Job, make_desired, start_job
from tests.support.generations import make_hello


def status(job: Job) -> CoordinatorStatus:
    return make_status(job.core.state, 1)


def reason(job: Job) -> str | None:
    waiting = status(job).waiting
    return waiting.reason if waiting is not None else None


def test_each_reason_is_checked_once() -> None:
    reasons = [reason for reason, _ in REASONS]
    assert len(set(reasons)) == len(reasons)


def test_a_job_that_trains_waits_for_nothing() -> None:
    job, _ = start_job()
    assert status(job).phase == "running"
    assert reason(job) is None


def test_a_job_that_has_ended_waits_for_nothing() -> None:
    job, _ = start_job(steps=5)
    job.wait(2.0)
    assert status(job).phase == "completed"
    assert reason(job) is None


def test_no_workers_have_come_yet() -> None:
    assert reason(Job()) == "NoWorkersYet"


def test_too_few_workers_have_come() -> None:
    job = Job()
    job.add_agent(0)
    job.wait(0.1)
    assert reason(job) == "TooFewWorkers"


def test_workers_that_import_torch_are_named_while_they_report_it() -> None:
    job = Job()
    for index in (0, 1, 1_000_000):
        job.core.on_importing(index, "", job.now)
    job.wait(0.1)
    doing = "(importing torch: gpt-w0, gpt-w1; see the pods of gpt-w2)"
    assert status(job).message == f"waiting for workers: none has connected yet {doing}"
    job.wait(3.0)
    assert status(job).message.endswith(doing)
    job.wait(3.0)
    assert status(job).message.endswith("(see the pods of gpt-w0, gpt-w1, gpt-w2)")


def test_a_run_on_this_machine_has_logs_and_no_pods() -> None:
    job = Job(desired=make_desired(namespace="local"))
    job.wait(0.1)
    assert "(see the logs of gpt-w0, " in status(job).message


def test_more_workers_than_the_least_are_waited_for_a_while() -> None:
    job = Job(make_desired(start_grace_seconds=10.0))
    job.add_agent(0)
    job.add_agent(1)
    job.wait(3.0)
    assert reason(job) == "GatheringWorkers"
    assert status(job).message == (
        "waiting up to 10 s for 1 more of 3 workers; the job then trains with 2"
    )


def test_a_generation_starts_before_it_trains() -> None:
    job = Job()
    for index in range(3):
        job.add_agent(index)
    assert reason(job) == "GenerationStarting"


def test_a_new_coordinator_waits_for_the_workers_of_a_former_one() -> None:
    job, agents = start_job()
    agents[2].connects = False
    job.start_coordinator(2)
    job.wait(0.5)
    waiting = status(job).waiting
    assert waiting is not None
    assert waiting.reason == "FormerWorkersAwaited"
    assert (
        waiting.message
        == f"waiting for {agents[2].state.hello().pod} to connect to the new coordinator, or else "
        "to count as lost"
    )


def test_the_first_coordinator_has_no_former_workers_to_wait_for() -> None:
    job = Job()
    job.add_agent(0)
    job.add_agent(1)
    job.wait(0.5)
    assert reason(job) == "GatheringWorkers"


def test_a_volume_that_refuses_comes_before_missing_workers() -> None:
    job = Job()
    job.core.on_reservation_failed("No space left on device", job.now)
    waiting = status(job).waiting
    assert waiting is not None
    assert waiting.reason == "VolumeUnavailable"
    assert waiting.message == (
        "no generation can begin: its number cannot be reserved in /volume/gpt: No space left on "
        "device (free space, or make it writable for the pods' user; the next try follows within "
        "30 s)"
    )


def test_a_volume_that_does_not_answer_gets_advice_about_its_server_and_not_about_space() -> None:
    job = Job()
    job.core.on_reservation_unanswered("the volume has not answered for 5 s", job.now)
    message = status(job).message
    assert message == (
        "no generation can begin: its number cannot be reserved in /volume/gpt: the volume has not "
        "answered for 5 s (check the volume's server and the mount of node node-c)"
    )
    job.core.on_reservation_failed("No space left on device", job.now)
    assert "(free space" in status(job).message


def test_a_volume_that_answers_late_is_waited_for() -> None:
    core = Coordinator(1, "node-c", make_desired(replicas=2), 100.0, 0.0)
    for index in range(2):
        core.on_message(make_hello(index), f"uid-{index}", 103.0)
    waiting = make_status(core.state, 1).waiting
    assert waiting is not None
    assert waiting.reason == "ReservingNumber"


def test_a_suspect_worker_is_waited_for() -> None:
    job, agents = start_job()
    job.cut_off(agents[2])
    job.fail_rank(agents[1])
    job.wait(1.3)
    assert reason(job) == "WorkerSuspect"
    assert status(job).message.endswith(
        "waiting for gpt-w2-3 on node node-2: its heartbeats are late; it answers within 2.0 s or "
        "counts as lost"
    )


def test_the_message_names_the_failure_and_what_is_waited_for() -> None:
    job, agents = start_job(workers=2, replicas=2)
    job.crash(agents[0])
    job.wait(3.0)
    waiting = status(job).waiting
    assert waiting is not None
    assert waiting.reason == "TooFewWorkers"
    assert "is lost" in waiting.message
    assert waiting.message.endswith(
        "; waiting for 1 more worker: have 1 of at least 2 (see the pods of gpt-w0)"
    )
    assert status(job).message == waiting.message


def test_who_is_kept_for_a_snapshot_and_who_is_too_many_are_none_of_the_least_workers() -> None:
    job, (first, second, _) = start_job()
    snapshot = SnapshotNumber(job.step, job.record.number, 1)
    job.send(first, HeldSnapshots(snapshots=(HeldSnapshot(number=snapshot, shards=(0,)),)))
    job.update_desired(replicas=2)
    job.ask_to_leave(first)
    job.report_lost(second, "node NotReady")
    job.add_agent(1)
    job.wait(1.0)
    assert status(job).message.endswith(
        "; waiting for 1 more worker: have 1 of at least 2 (see the pods of gpt-w0); gpt-w0-1 is "
        "to leave, and stays until then for its part of a memory snapshot, which no other has"
    )
    job.add_agent(0)
    job.wait(1.0)
    assert job.indices == [0, 1]
    assert status(job).phase == "running"
    assert first.exit_code == 0


def test_a_generation_that_failed_says_so_until_its_ranks_are_out() -> None:
    job, agents = start_job()
    job.fail_rank(agents[1])
    waiting = status(job).waiting
    assert waiting is not None
    assert waiting.reason == "GenerationFailed"
    assert waiting.message == (
        "rank 1 on gpt-w1-2 (node node-1) ended with exit code 1; the ranks of generation 1.1 are "
        "being stopped"
    )


def test_the_pause_after_failures_without_progress_is_waited_for() -> None:
    job, agents = start_job(strategy="fsdp", backoff_seconds=5.0, max_restarts=-1)
    for _ in range(3):
        job.fail_rank(agents[1])
        job.wait(0.5)
    assert reason(job) == "BackOff"
    assert "s before the next try, since failures came without a step" in status(job).message


def test_ranks_that_may_keep_their_state_get_the_time_to_leave() -> None:
    job, agents = start_job()
    job.hang(agents[1])
    job.cut_off(agents[0])
    job.wait(2.3)
    assert reason(job) == "RanksLeaving"


def test_a_generation_that_is_to_end_before_its_first_step_is_leaving() -> None:
    job = Job()
    for index in range(3):
        job.add_agent(index)
    job.update_desired(suspend=True)
    assert reason(job) == "GenerationEnding"
