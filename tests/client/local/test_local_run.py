"""Jobs on this machine, end to end: real processes, real training, real deaths."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from regroup.local import local_run
from regroup.local.faults import Fault
from regroup.local.local_run import LocalRun, LocalRunError, newest_term
from regroup.local.processes import LocalProcess, Place, descendants, find_rank
from regroup.local.record_file import read_record
from regroup_trainer.checkpoint.layout import Layout, published_step
from regroup_trainer.protocol.config import CheckpointPolicy
from regroup_trainer.protocol.exit_codes import PEER_LOST_EXIT_CODE
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import CoordinatorStatus
from tests.support.local_job import (
    Act,
    at_step,
    kill_worker_for_a_while,
    make_run,
    make_train,
    play,
    release_replacements,
    require_whole_history,
    trains_with,
)
from tests.support.processes import runs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
ENDLESS = 1_000_000
"""Steps of a run that is suspended in the end: however fast the machine, what is to happen happens
before.
"""


def test_a_process_whose_log_the_folder_refuses_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a full or read-only folder and one dead worker end the run, and all states with it."""
    refusals = [OSError(errno.EROFS, "Read-only file system", "job-w0.log") for _ in range(4)]

    def start(*_: object) -> LocalProcess:
        if refusals:
            raise refusals.pop()
        return cast(LocalProcess, SimpleNamespace(exit_code=None))

    monkeypatch.setattr(local_run, "start_agent", start)
    monkeypatch.setattr(local_run, "start_coordinator", start)
    run = make_run(tmp_path, 1, replicas=1, min_replicas=1)
    run.replace_seconds, notes, place = 0.0, list[str](), cast(Place, None)
    run.on_note = notes.append

    async def keep() -> None:
        run._keep_coordinator(place)
        run._keep_workers(place)

    with pytest.raises(LocalRunError, match=r"job-w0\.log: Read-only file system"):
        asyncio.run(keep())  # nothing has worked yet: the user is there to read it
    run.status = CoordinatorStatus.model_construct(generation=None, ledger=run.desired.seed)
    for _ in range(3):
        asyncio.run(keep())
    assert (run.coordinator is not None, list(run.agents), run._term) == (True, [0], 1)
    why = "cannot start a process: job-w0.log: Read-only file system; trying again"
    assert set(notes) == {why}


def test_training_survives_the_loss_of_every_part_in_turn(tmp_path: Path) -> None:
    faults = [Fault("rank", 1, 30), Fault("worker", 1, 60), Fault("coordinator", 0, 90)]
    run = make_run(tmp_path, ENDLESS, faults)
    outcome = play(
        run,
        [
            (at_step(120), lambda run: None),
            (trains_with(3), lambda run: run.kill_rank(0)),
            (at_step(150), lambda run: kill_worker_for_a_while(run, _worker_of_rank_zero(run))),
            (trains_with(2), release_replacements),
            (at_step(200), lambda run: run.suspend()),
        ],
    )
    assert outcome.result == "suspended"
    require_whole_history(tmp_path)
    assert newest_term(tmp_path) == 2
    unplanned = [
        recovery
        for recovery in run.recoveries.values()
        if recovery.cause in ("application", "infrastructure")
    ]
    assert {"application", "infrastructure"} == {recovery.cause for recovery in unplanned}
    assert all(
        (recovery.restored_from, recovery.lost_steps) == ("Peers", 0) for recovery in unplanned
    )
    record = read_record(tmp_path)
    assert record is not None and record.report is not None
    assert record.outcome == outcome
    assert record.report.recoveries == tuple(r for _, r in sorted(run.recoveries.items()))[-10:]


def _worker_of_rank_zero(run: LocalRun) -> int:
    assert run.status is not None
    return next(member.index for member in run.status.members if member.rank == 0)


def test_an_error_of_whoever_watches_ends_the_run(tmp_path: Path) -> None:
    """It is not one of the connection to the coordinator, which are waited out."""

    def disappear(_status: CoordinatorStatus) -> bool:
        raise ProcessLookupError("no such process")

    with pytest.raises(ProcessLookupError):
        play(make_run(tmp_path, ENDLESS), [(disappear, lambda run: None)])


def test_the_coordinator_dies_together_with_a_worker(tmp_path: Path) -> None:
    run = make_run(tmp_path, ENDLESS)

    def kill_both(run: LocalRun) -> None:
        run.kill_coordinator()
        kill_worker_for_a_while(run, _worker_of_rank_zero(run))

    acts = [
        (at_step(25), kill_both),
        (trains_with(2), release_replacements),
        (trains_with(3), lambda run: run.suspend()),
    ]
    assert play(run, acts).result == "suspended"
    recoveries = run.recoveries.values()
    assert {recovery.cause for recovery in recoveries} == {"infrastructure", "resize"}
    assert {(recovery.restored_from, recovery.lost_steps) for recovery in recoveries} == {
        ("Peers", 0)
    }
    assert newest_term(tmp_path) == 2
    require_whole_history(tmp_path)


def test_the_loss_of_every_process_at_once_is_counted_as_the_volume_shows_it(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, ENDLESS, replicas=2)

    def kill_all(run: LocalRun) -> None:
        run.kill_coordinator()
        for index in range(2):
            run.kill_worker(index)

    def goes_on(status: CoordinatorStatus) -> bool:
        return status.term == 2 and at_step(1)(status)

    acts = [(at_step(33), kill_all), (goes_on, lambda run: run.suspend())]
    assert play(run, acts).result == "suspended"
    (recovery,) = run.recoveries.values()
    made = len(Layout(tmp_path).history_file(GenerationNumber(1, 1)).read_text().splitlines())
    resumed = recovery.resumed_from_step
    assert resumed in (20 * (made // 20), 20 * (made // 20) - 20)  # the newest save takes a moment
    assert recovery.lost_steps == made - resumed + recovery.unflushed_steps
    assert recovery.unflushed_steps < 10
    assert run.status is not None
    assert run.status.ledger.lost_steps == recovery.lost_steps
    assert run.status.ledger.restarts["infrastructure"] == 1
    require_whole_history(tmp_path)


def test_a_job_scales_up_and_down_without_losing_a_step_and_trains_while_a_worker_warms_up(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, ENDLESS, replicas=2)
    asked_at: list[int] = []

    def scale_up(run: LocalRun) -> None:
        assert run.status is not None
        assert run.status.progress is not None
        asked_at.append(run.status.progress.step)
        run.scale(3)

    def warms_up(_status: CoordinatorStatus) -> bool:
        """The new worker was started just now: it can be kept from joining."""
        return 2 in run.agents

    def trains_meanwhile(status: CoordinatorStatus) -> bool:
        """In the old generation, after the new worker was started."""
        return status.revision == 2 and trains_with(2)(status) and at_step(asked_at[0] + 1)(status)

    outcome = play(
        run,
        [
            (lambda status: trains_with(2)(status) and at_step(2)(status), scale_up),
            (warms_up, lambda run: signal_worker(run, 2, signal.SIGSTOP)),
            (trains_meanwhile, lambda run: signal_worker(run, 2, signal.SIGCONT)),
            (trains_with(3), lambda run: run.scale(2)),
            (trains_with(2), lambda run: run.suspend()),
        ],
    )
    assert outcome.result == "suspended"
    assert run.status is not None
    assert run.status.ledger.lost_steps == 0
    require_whole_history(tmp_path)


def test_a_broken_replica_group_waits_until_it_is_whole_again(tmp_path: Path) -> None:
    train = make_train(ENDLESS, strategy="hsdp", shardGroupSize=2)
    run = make_run(tmp_path, ENDLESS, replicas=4, min_replicas=2, replica_group_size=2, train=train)
    waiting: list[str] = []

    def replace(run: LocalRun) -> None:
        assert run.status is not None
        waiting.append(run.status.message)
        release_replacements(run)

    outcome = play(
        run,
        [
            (trains_with(4), lambda run: kill_worker_for_a_while(run, 3)),
            (trains_with(2), replace),
            (trains_with(4), lambda run: run.suspend()),
        ],
    )
    assert outcome.result == "suspended"
    assert "without a rank: its replica group is not whole" in waiting[0]
    require_whole_history(tmp_path)


def test_a_spare_has_a_killed_workers_place_before_its_replacement_is_there(tmp_path: Path) -> None:
    run = make_run(tmp_path, ENDLESS, replicas=2, min_replicas=1, spares=1)
    spares: list[int] = []
    world_sizes: set[int] = set()

    def kill_one_that_trains(run: LocalRun) -> None:
        assert run.status is not None
        spares.extend(member.index for member in run.status.members if member.rank is None)
        of_rank_one = next(member.index for member in run.status.members if member.rank == 1)
        kill_worker_for_a_while(run, of_rank_one)

    def taken(status: CoordinatorStatus) -> bool:
        world_sizes.add(status.world_size)
        return trains_with(2)(status) and any(
            m.index == spares[0] and m.rank is not None for m in status.members
        )

    def whole(status: CoordinatorStatus) -> bool:
        return trains_with(2)(status) and status.spares == 1

    outcome = play(
        run,
        [
            (whole, kill_one_that_trains),
            (taken, release_replacements),
            (whole, lambda run: run.suspend()),
        ],
    )
    assert outcome.result == "suspended"
    assert world_sizes <= {0, 2}, "no generation was formed without the spare"
    (recovery,) = run.recoveries.values()
    assert (recovery.cause, recovery.world_size_before, recovery.world_size_after) == (
        "infrastructure",
        2,
        2,
    )
    require_whole_history(tmp_path)


@pytest.mark.long
def test_a_suspended_job_goes_on_where_it_was_with_other_workers_and_another_strategy(
    tmp_path: Path,
) -> None:
    first = make_run(tmp_path, 150, replicas=2)
    assert play(first, [(at_step(33), lambda run: run.suspend())]).result == "suspended"
    assert first.status is not None
    assert first.status.progress is not None
    assert first.status.checkpoint is not None
    assert first.status.checkpoint.step == first.status.progress.step
    second = make_run(
        tmp_path, 150, replicas=1, min_replicas=1, train=make_train(150, strategy="fsdp")
    )
    second.ranks = 2
    assert play(second).result == "completed"
    assert require_whole_history(tmp_path) == 150


def test_a_program_that_does_not_listen_gets_a_signal_and_the_time_to_save(
    tmp_path: Path,
) -> None:
    program = (str(Path(__file__).parents[2] / "support" / "plain_saver.py"), str(tmp_path))

    def begun(size: int) -> None:
        wait_until(
            f"{size} programs", lambda: len(list(tmp_path.glob("begun-*"))) == size, seconds=60
        )
        for mark in tmp_path.glob("begun-*"):
            mark.unlink()

    def scale(run: LocalRun) -> None:
        begun(3)
        run.scale(2)

    def suspend(run: LocalRun) -> None:
        assert {mark.name for mark in tmp_path.glob("saved-*")} == {"saved-0", "saved-1", "saved-2"}
        for mark in tmp_path.glob("saved-*"):
            mark.unlink()
        begun(2)
        run.suspend()

    run = make_run(tmp_path, ENDLESS, script=program)
    assert play(run, [(trains_with(3), scale), (trains_with(2), suspend)]).result == "suspended"
    assert {mark.name for mark in tmp_path.glob("saved-*")} == {"saved-0", "saved-1"}
    assert {recovery.cause for recovery in run.recoveries.values()} == {"resize"}


def test_a_rank_that_hangs_is_found_named_and_begun_anew(tmp_path: Path) -> None:
    # On a busy machine, a rank that is begun anew took more than 2 s to its first step.
    run = make_run(tmp_path, 200, progress_timeout_seconds=5)
    assert play(run, [(at_step(25), lambda run: _freeze_rank(run, 1))]).result == "completed"
    (hang,) = [recovery for recovery in run.recoveries.values() if recovery.cause == "hang"]
    assert "rank 1 on " in hang.message
    assert "does not answer" in hang.message
    assert (hang.restored_from, hang.lost_steps) == ("Peers", 0)
    assert require_whole_history(tmp_path) == 200


@pytest.mark.long
def test_a_long_evaluation_is_no_hang(tmp_path: Path) -> None:
    train = make_train(10)
    evaluation = train.evaluation.model_copy(update={"every_steps": 5, "samples": 60})
    run = make_run(
        tmp_path,
        10,
        train=train.model_copy(update={"evaluation": evaluation}),
        progress_timeout_seconds=2,
    )
    run.entry = "tests.support.slow_evaluation"
    assert play(run).result == "completed"
    assert not run.recoveries


def signal_worker(run: LocalRun, index: int, number: signal.Signals) -> None:
    os.kill(run.agents[index].popen.pid, number)


def _freeze_rank(run: LocalRun, rank: int) -> None:
    pid = next(pid for agent in run.agents.values() if (pid := find_rank(agent, rank)) is not None)
    os.kill(pid, signal.SIGSTOP)


def test_a_worker_that_cannot_start_ends_the_run_with_its_log(tmp_path: Path) -> None:
    run = make_run(tmp_path, 10, replicas=1, min_replicas=1)
    run.entry = "no_such_module"
    with pytest.raises(LocalRunError, match="No module named 'no_such_module'"):
        play(run)


def test_a_program_that_always_fails_ends_in_failure_with_its_last_lines(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, 10, replicas=1, min_replicas=1, job="raise", max_restarts=2, backoff_seconds=0.1
    )
    run.entry = "tests.support.tiny_rank"
    outcome = play(run)
    assert (outcome.result, outcome.exit_code) == ("failed", 1)
    assert "the data is upside down" in outcome.message
    assert "the budget of 2 restarts is used up" in outcome.message
    (termination,) = (tmp_path / "logs").glob("*.termination")
    report = json.loads(termination.read_text())
    assert (report["rank"], report["exitCode"], report["cause"]) == (0, 1, "error")
    assert report["exitCode"] != PEER_LOST_EXIT_CODE


def test_ctrl_c_saves_and_nothing_is_left_over_when_the_command_is_killed(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "apiVersion: regroup.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: gpt}\nspec:\n"
        "  checkpoint: {intervalSteps: 20}\n"
        "  trainer: {model: {preset: tiny}, training: {steps: 100000, globalBatchSize: 2, "
        "sequenceLength: 64}}\n"
    )
    folder = tmp_path / "run"
    command = [
        str(Path(sys.executable).with_name("regroup")),
        "run",
        str(job),
        "--directory",
        str(folder),
        "--plain",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_until("a checkpoint", (folder / "checkpoints/step-20").exists, seconds=200)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "suspended:" in output
    assert f"resume with: regroup run {job} --directory {folder}" in output

    again = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    agents = wait_until("the processes", lambda: descendants(again.pid)[2:], seconds=60)
    again.kill()
    again.wait()
    wait_until("everything to be gone", lambda: not any(runs(pid) for pid in agents))


def test_a_checkpoint_that_somebody_asks_for_is_saved_while_training_goes_on(
    tmp_path: Path,
) -> None:
    seldom = CheckpointPolicy(interval_steps=100_000, on_termination="Skip")
    run = make_run(tmp_path, 100_000, replicas=1, min_replicas=1, checkpoint=seldom)
    saved: list[int] = []

    def is_saved(status: CoordinatorStatus) -> bool:
        answer = status.checkpoint_answer
        if answer is None or answer.outcome == "Pending" or status.checkpoint is None:
            return False
        assert (answer.request, answer.outcome) == ("now-1", "Done")
        saved.append(status.checkpoint.step)
        return True

    def trains_on(status: CoordinatorStatus) -> bool:
        return at_step(saved[0] + 5)(status)

    acts: list[Act] = [
        (at_step(5), lambda run: run._change(checkpoint_request="now-1")),
        (is_saved, lambda run: None),
        (trains_on, lambda run: run.suspend()),
    ]
    assert play(run, acts).result == "suspended"
    folders = (path.name for path in Layout(tmp_path).checkpoints.iterdir())
    assert [step for name in folders if (step := published_step(name)) is not None] == saved


def test_a_restart_that_somebody_asks_for_starts_from_its_checkpoint_once(tmp_path: Path) -> None:
    keep_all = CheckpointPolicy(interval_steps=20, keep_last=1000)
    run = make_run(tmp_path, ENDLESS, replicas=1, min_replicas=1, checkpoint=keep_all)

    def restarted(status: CoordinatorStatus) -> bool:
        answer = status.restart_answer
        if answer is None or answer.outcome == "Pending":
            return False
        assert answer.outcome == "Done"
        assert answer.message == "the ranks started from step 20 of a checkpoint"
        return True

    def restarted_and_recovered(status: CoordinatorStatus) -> bool:
        """Steps beyond the kill may be made before it strikes, so a step alone shows nothing."""
        return len(status.recoveries) == 2 and at_step(80)(status)

    acts: list[Act] = [
        (at_step(45), lambda run: run._change(restart_request="now-1@20")),
        (restarted, lambda run: None),
        (at_step(65), lambda run: run.kill_rank(0)),
        (restarted_and_recovered, lambda run: run.suspend()),
    ]
    assert play(run, acts).result == "suspended"
    assert require_whole_history(tmp_path) >= 70
    assert run.status is not None
    causes = [(one.cause, one.resumed_from_step) for one in run.status.recoveries]
    assert causes[0] == ("resize", 20)
    assert causes[1][1] != 20, "later generations go on from where they are"
