"""Recovery from peers with real processes: what its peers hold outlives a process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regroup.local.local_run import LocalRun
from regroup.local.processes import descendants, find_rank
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.job_status import Recovery
from tests.support import survival_faults
from tests.support.local_job import (
    at_step,
    kill_worker_for_a_while,
    late_workers,
    losses,
    make_run,
    make_train,
    play,
    recovered_at,
    release_replacements,
    require_whole_history,
    trains_with,
)
from tests.support.processes import freeze, thaw

pytestmark = pytest.mark.slow
FP32_ROUNDING = 1e-5
OWN_PROGRAM = Path(__file__).parents[2] / "support/own_program.py"
STEPS = 200
"""Enough for two acts: a coordinator reports a step a second after it."""
OWN_STEPS = 60
"""Of a program whose steps take longer."""
TENSOR_STEPS = 80
"""With tensor parallelism a step takes five times as long."""
HSDP = {"strategy": "hsdp", "shardGroupSize": 2}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float | None]:
    """The losses of a run in which nothing dies."""
    directory = tmp_path_factory.mktemp("undisturbed")
    run = make_run(directory, STEPS, replicas=1, min_replicas=1)
    assert play(run).result == "completed"
    return losses(directory)


def recovery_of(run: LocalRun, cause: str) -> Recovery:
    """The only one of this cause."""
    (found,) = [recovery for recovery in run.recoveries.values() if recovery.cause == cause]
    return found


def rank_pids(run: LocalRun) -> dict[int, int]:
    """Worker -> process of its rank."""
    found = {}
    for index, agent in run.agents.items():
        for rank in range(4):
            if (pid := find_rank(agent, rank)) is not None:
                found[index] = pid
    return found


def compiled(train: TrainConfig) -> TrainConfig:
    """The same training, by compiled functions."""
    return train.model_copy(
        update={"training": train.training.model_copy(update={"compile": True})}
    )


def survive_the_death_of_rank_1(run: LocalRun, at: int, later: int) -> None:
    """Run to the end; a rank is killed at step `at`, and by step `later` the two others are still
    there, unless they could not leave.
    """
    before: dict[int, int] = {}
    after: dict[int, int] = {}

    def kill(run: LocalRun) -> None:
        before.update(rank_pids(run))
        assert run.kill_rank(1)

    acts = [(at_step(at), kill), (recovered_at(later), lambda run: after.update(rank_pids(run)))]
    assert play(run, acts).result == "completed"
    recovery = recovery_of(run, "application")
    assert (recovery.restored_from, recovery.lost_steps) == ("Peers", 0)
    assert len(before.items() & after.items()) + len(late_workers(run)) == 2


def test_a_killed_rank_costs_no_step_and_no_other_process(
    tmp_path: Path, undisturbed: list[float | None]
) -> None:
    run = make_run(tmp_path, STEPS)
    survive_the_death_of_rank_1(run, 25, 40)
    assert losses(tmp_path) == pytest.approx(undisturbed, rel=FP32_ROUNDING)
    assert require_whole_history(tmp_path) == STEPS


def test_a_killed_worker_costs_no_step_and_its_replacement_joins_without_a_save(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, 1_000_000)
    acts = [
        (at_step(25), lambda run: kill_worker_for_a_while(run, 0)),
        (trains_with(2), release_replacements),
        (trains_with(3), lambda run: run.suspend()),
    ]
    assert play(run, acts).result == "suspended"
    for cause in ("infrastructure", "resize"):
        recovery = recovery_of(run, cause)
        assert (recovery.restored_from, recovery.lost_steps) == ("Peers", 0)
    assert require_whole_history(tmp_path) > 25


def test_peers_of_a_frozen_worker_go_on_without_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1_000_000)
    frozen: list[int] = []

    def freeze_worker(run: LocalRun) -> None:
        agent = run.agents[1].popen.pid
        frozen.extend([agent, *descendants(agent)])
        freeze(frozen)

    with _thawed_in_the_end(frozen):
        acts = [
            (at_step(25), freeze_worker),
            (trains_with(2), lambda run: thaw(frozen)),
            (trains_with(3), lambda run: run.suspend()),
        ]
        assert play(run, acts).result == "suspended"
    recovery = recovery_of(run, "infrastructure")
    assert (recovery.restored_from, recovery.lost_steps) == ("Peers", 0)
    assert recovery.down_seconds is not None
    assert recovery.down_seconds < 15
    require_whole_history(tmp_path)


@contextmanager
def _thawed_in_the_end(pids: list[int]) -> Iterator[None]:
    try:
        yield
    finally:
        thaw(pids)


@pytest.mark.long
@pytest.mark.parametrize("dying", [2, 0], ids=["another", "rank 0, which had not noted it"])
def test_a_rank_that_did_not_see_the_commit_of_its_last_step_completes_it(
    tmp_path: Path, undisturbed: list[float | None], monkeypatch: pytest.MonkeyPatch, dying: int
) -> None:
    die_with_a_commit(tmp_path, monkeypatch, dying)
    logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("test-w*"))
    assert "completed step 30, whose commit a peer had seen" in logs
    assert losses(tmp_path) == pytest.approx(undisturbed, rel=FP32_ROUNDING)


def test_the_order_to_leave_does_not_overtake_a_commit_that_is_on_its_way(
    tmp_path: Path, undisturbed: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator is quicker than a sum that goes from rank to rank over busy cores."""
    monkeypatch.setenv(survival_faults.LATE, "yes")
    die_with_a_commit(tmp_path, monkeypatch, 0)
    assert losses(tmp_path) == pytest.approx(undisturbed, rel=FP32_ROUNDING)


def die_with_a_commit(directory: Path, monkeypatch: pytest.MonkeyPatch, dying: int) -> None:
    """Run to the end; one rank has applied a step, and is killed before another has."""
    monkeypatch.setenv(survival_faults.DYING, str(dying))
    run = make_run(directory, STEPS, min_replicas=3)  # its fault is of the first generation
    run.entry = "tests.support.survival_faults"
    assert play(run).result == "completed"
    recovery = recovery_of(run, "application")
    assert (recovery.restored_from, recovery.lost_steps, recovery.resumed_from_step) == (
        "Peers",
        0,
        30,
    )
    assert require_whole_history(directory) == STEPS


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "workers", "graphs"),
    [
        ({}, {}, {"2"}),  # one for all blocks and one for the loss, in every process
        (HSDP, {"replicas": 4, "replica_group_size": 2}, {"2"}),
        # Sharded blocks communicate within their group: one graph for each size of the group, and
        # none for the loss.
        ({"tensorParallel": 2}, {"replicas": 4, "replica_group_size": 2}, {"1", "2"}),
    ],
    ids=["ddp", "hsdp", "ddp x tensor"],
)
def test_what_was_compiled_stays_compiled_in_the_next_generations(
    tmp_path: Path, layout: dict[str, Any], workers: dict[str, Any], graphs: set[str]
) -> None:
    run = make_run(tmp_path, 1_000_000, train=compiled(make_train(1_000_000, **layout)), **workers)
    run.entry = "tests.support.graph_counter"
    whole = run.desired.replicas
    acts = [
        (at_step(15), lambda run: kill_worker_for_a_while(run, 1)),
        (trains_with(2), release_replacements),
        (trains_with(whole), lambda run: run.suspend()),
    ]
    assert play(run, acts).result == "suspended"
    assert {recovery.restored_from for recovery in run.recoveries.values()} == {"Peers"}
    logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("test-w*"))
    reported = re.findall(r"graphs: (\d+)", logs)
    assert len(reported) >= whole + 2  # the two survivors report once in each generation
    assert set(reported) == graphs


@pytest.mark.long
@pytest.mark.parametrize(
    "train",
    [
        make_train(STEPS, **HSDP),
        make_train(TENSOR_STEPS, tensorParallel=2),
        compiled(make_train(TENSOR_STEPS, tensorParallel=2)),  # its commits take the longest way
    ],
    ids=["hsdp", "ddp x tensor", "ddp x tensor, compiled"],
)
def test_a_broken_replica_group_costs_no_step(tmp_path: Path, train: TrainConfig) -> None:
    steps = train.training.steps
    alone = make_run(tmp_path / "alone", steps, replicas=1, min_replicas=1)
    assert play(alone).result == "completed"
    run = make_run(
        tmp_path / "groups", steps, replicas=4, min_replicas=2, replica_group_size=2, train=train
    )
    run.replace_seconds = 1.0
    # Rank 0 and its part go; the other group's parts are those that live.
    acts = [(at_step(20), lambda run: run.kill_rank(0))]
    assert play(run, acts).result == "completed"
    recovery = recovery_of(run, "application")
    assert (recovery.restored_from, recovery.lost_steps) == ("Peers", 0)
    assert losses(tmp_path / "groups") == pytest.approx(
        losses(tmp_path / "alone"), rel=FP32_ROUNDING
    )
    assert require_whole_history(tmp_path / "groups") == steps


@pytest.mark.parametrize(
    "layout",
    [
        HSDP,
        pytest.param({"tensorParallel": 2}, marks=pytest.mark.long),
        pytest.param({"pipelineParallel": 2}, marks=pytest.mark.long),
    ],
    ids=["hsdp", "ddp x tensor", "ddp x pipeline"],
)
def test_a_lost_worker_leaves_a_replica_group_that_goes_on_until_the_other_is_whole_again(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    endless = 1_000_000
    train = make_train(endless, **layout)
    run = make_run(tmp_path, endless, replicas=4, min_replicas=2, replica_group_size=2, train=train)
    acts = [
        (at_step(20), lambda run: kill_worker_for_a_while(run, 0)),
        (trains_with(2), release_replacements),
        (trains_with(4), lambda run: run.suspend()),
    ]
    assert play(run, acts).result == "suspended"
    recoveries = run.recoveries.values()
    assert {recovery.cause for recovery in recoveries} == {"infrastructure", "resize"}
    assert {(recovery.restored_from, recovery.lost_steps) for recovery in recoveries} == {
        ("Peers", 0)
    }
    require_whole_history(tmp_path)


def test_a_custom_program_goes_on_in_its_processes(tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    script = (str(OWN_PROGRAM), f"--steps={OWN_STEPS}", "--micro-batch=2")
    run = make_run(alone, OWN_STEPS, replicas=1, min_replicas=1, script=script)
    assert play(run).result == "completed"

    run = make_run(tmp_path / "killed", OWN_STEPS, script=(*script, "--step-seconds=0.05"))
    survive_the_death_of_rank_1(run, 20, 40)
    assert losses(tmp_path / "killed") == pytest.approx(losses(alone), rel=FP32_ROUNDING)
    assert require_whole_history(tmp_path / "killed") == OWN_STEPS


@pytest.mark.long
def test_ranks_whose_steps_take_long_get_the_time_to_come_out_of_them(tmp_path: Path) -> None:
    steps, slowly = 7, "--step-seconds=2"
    run = make_run(tmp_path, steps, script=(str(OWN_PROGRAM), f"--steps={steps}", slowly))
    survive_the_death_of_rank_1(run, 3, 5)
    assert require_whole_history(tmp_path) == steps


def test_an_evaluation_ends_with_its_generation(tmp_path: Path) -> None:
    """Its batches take 0.4 s each, half a minute in all."""
    train = make_train(8)
    evaluation = train.evaluation.model_copy(update={"every_steps": 6, "samples": 450})
    run = make_run(tmp_path, 8, train=train.model_copy(update={"evaluation": evaluation}))
    run.entry = "tests.support.slow_evaluation"
    survive_the_death_of_rank_1(run, 6, 7)
    assert require_whole_history(tmp_path) == 8
