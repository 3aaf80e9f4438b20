"""Whole generations of real ranks: what they train, when they act, how they end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from regroup_trainer.checkpoint.history import audit, committed
from regroup_trainer.protocol.exit_codes import PEER_LOST_EXIT_CODE
from regroup_trainer.protocol.generation import Decision, GenerationNumber
from tests.support.ranks import RankOutcome, Template, generation, succeeded, train_config

FP32_ROUNDING = 1e-5
DDP, FSDP = {"strategy": "ddp"}, {"strategy": "fsdp"}


@pytest.fixture(scope="module")
def reference(template: Template, tmp_path_factory: pytest.TempPathFactory) -> RankOutcome:
    """The same run in one process, never disturbed."""
    directory = tmp_path_factory.mktemp("reference")
    config = train_config(evaluation={"every_steps": 3, "samples": 7})
    return succeeded(template.run(generation(directory, 1, config)))[0]


@pytest.mark.parametrize("parallelism", [DDP, FSDP], ids=["ddp", "fsdp"])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_any_world_size_trains_as_one_process_does(
    template: Template,
    tmp_path: Path,
    reference: RankOutcome,
    parallelism: dict[str, str],
    world_size: int,
) -> None:
    config = train_config(parallelism=parallelism, evaluation={"every_steps": 3, "samples": 7})
    rank0, *others = succeeded(template.run(generation(tmp_path, world_size, config)))
    assert rank0.losses == pytest.approx(reference.losses, rel=FP32_ROUNDING)
    assert [e.loss for e in rank0.evaluated] == pytest.approx(
        [e.loss for e in reference.evaluated], rel=FP32_ROUNDING
    )
    assert [p.gradient_norm for p in rank0.progress] == pytest.approx(
        [p.gradient_norm for p in reference.progress], rel=1e-4
    )
    assert [len(other.progress) for other in others] == [6] * (world_size - 1)
    assert audit(tmp_path) == []


def test_more_ranks_than_samples_train_all_the_same(
    template: Template, tmp_path: Path, reference: RankOutcome
) -> None:
    few = {"training": {"global_batch_size": 2, "steps": 3}}
    alone = succeeded(template.run(generation(tmp_path / "one", 1, train_config(**few))))[0]
    crowd = succeeded(
        template.run(generation(tmp_path / "three", 3, train_config(parallelism=FSDP, **few)))
    )[0]
    assert crowd.losses == pytest.approx(alone.losses, rel=FP32_ROUNDING)


def test_losses_fall(reference: RankOutcome) -> None:
    first, last = reference.losses[0], reference.losses[-1]
    assert first and last
    assert last < first - 0.1


@pytest.mark.parametrize("parallelism", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_bf16_stays_near_fp32(
    template: Template, tmp_path: Path, reference: RankOutcome, parallelism: dict[str, str]
) -> None:
    config = train_config(parallelism=parallelism, training={"precision": "bf16"})
    outcomes = succeeded(template.run(generation(tmp_path, 2, config)))
    assert outcomes[0].losses == pytest.approx(reference.losses, rel=1e-2)
    assert outcomes[0].losses != reference.losses


def test_resizes_leave_no_trace_in_the_loss_curve_nor_in_the_samples(
    template: Template, tmp_path: Path, reference: RankOutcome
) -> None:
    generations = [(3, "ddp"), (2, "fsdp"), (4, "fsdp"), (1, "ddp")]
    losses: list[float | None] = []
    for number, (world_size, strategy) in enumerate(generations, start=1):
        record = generation(
            tmp_path,
            world_size,
            train_config(parallelism={"strategy": strategy}),
            number=GenerationNumber(1, number),
        )
        leave = {2 * number: Decision.LEAVE} if number < 3 else {5: Decision.LEAVE}
        rank0 = succeeded(template.run(record, decisions=leave if number < 4 else {}))[0]
        losses += rank0.losses
    assert losses == pytest.approx(reference.losses, rel=FP32_ROUNDING)
    assert audit(tmp_path) == []
    assert [step.world for step in committed(tmp_path)] == [3, 3, 2, 2, 4, 1]


def test_a_lost_rank_costs_the_steps_since_the_checkpoint_and_no_sample(
    template: Template, tmp_path: Path, reference: RankOutcome
) -> None:
    policy = {"interval_steps": 2}
    lost = template.run(
        generation(tmp_path, 3, train_config(), checkpoint=policy),
        entry="tests.support.rank_faults:die_after_step",
        options={"rank": 0, "step": 5},
    )
    assert [outcome.exit_code for outcome in lost] == [
        137,
        PEER_LOST_EXIT_CODE,
        PEER_LOST_EXIT_CODE,
    ]
    record = generation(
        tmp_path, 2, train_config(), number=GenerationNumber(1, 2), checkpoint=policy
    )
    rank0 = succeeded(template.run(record))[0]
    saved = rank0.restored.step
    assert saved in (2, 4)  # a save that is under way dies with its rank
    assert rank0.losses == pytest.approx(reference.losses[saved:], rel=FP32_ROUNDING)
    assert [step.step for step in committed(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert audit(tmp_path) == []


def test_a_bug_in_one_rank_is_distinguished_from_the_loss_of_a_peer(
    template: Template, tmp_path: Path
) -> None:
    outcomes = template.run(
        generation(tmp_path, 3, train_config(parallelism=FSDP)),
        entry="tests.support.rank_faults:raise_after_step",
        options={"rank": 1, "step": 2},
    )
    assert [outcome.exit_code for outcome in outcomes] == [
        PEER_LOST_EXIT_CODE,
        1,
        PEER_LOST_EXIT_CODE,
    ]
    assert "ValueError: a bug of the user's own" in outcomes[1].stderr


@pytest.mark.parametrize(
    ("decision", "ending", "saved"),
    [
        (Decision.LEAVE, "leave", [2]),
        (Decision.STOP, "stop", [2]),
        (Decision.SAVE, "completed", [2, 6]),
    ],
)
def test_all_ranks_act_on_a_decision_after_the_same_step(
    template: Template, tmp_path: Path, decision: Decision, ending: str, saved: list[int]
) -> None:
    outcomes = succeeded(
        template.run(generation(tmp_path, 3, train_config()), decisions={2: decision})
    )
    finished = [outcome.finished for outcome in outcomes]
    assert {(end.step, end.reason) for end in finished if end} == {(saved[-1], ending)}
    assert None not in finished
    assert [report.step for report in outcomes[0].saved] == saved


def test_stop_saves_nothing_when_the_policy_says_so(template: Template, tmp_path: Path) -> None:
    record = generation(tmp_path, 2, train_config(), checkpoint={"on_termination": "Skip"})
    outcomes = succeeded(template.run(record, decisions={2: Decision.STOP}))
    assert outcomes[0].saved == []


def test_a_finished_run_is_finished_again_without_a_step(
    template: Template, tmp_path: Path
) -> None:
    succeeded(template.run(generation(tmp_path, 1, train_config())))
    again = generation(tmp_path, 2, train_config(), number=GenerationNumber(1, 2))
    rank0 = succeeded(template.run(again))[0]
    assert (rank0.restored.step, rank0.losses, rank0.saved) == (6, [], [])
    assert rank0.finished
    assert rank0.finished.reason == "completed"


@pytest.mark.parametrize("parallelism", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_a_step_whose_loss_is_not_finite_is_skipped_and_reported(
    template: Template, tmp_path: Path, parallelism: dict[str, str]
) -> None:
    outcomes = succeeded(
        template.run(
            generation(tmp_path, 2, train_config(parallelism=parallelism)),
            entry="tests.support.rank_faults:poison_step",
            options={"rank": 1, "step": 3},
        )
    )
    losses = outcomes[0].losses
    assert [loss is None for loss in losses] == [False, False, True, False, False, False]
    assert [report.skipped for report in outcomes[0].progress] == [0, 0, 1, 1, 1, 1]
    assert "step 3: loss or gradients are not finite, the update was skipped" in outcomes[0].stderr
    assert audit(tmp_path) == []


def test_a_step_whose_loss_is_not_finite_ends_a_run_that_asked_for_it_before_it_is_committed(
    template: Template, tmp_path: Path
) -> None:
    outcomes = template.run(
        generation(tmp_path, 2, train_config(training={"non_finite": "stop"})),
        entry="tests.support.rank_faults:poison_step",
        options={"rank": 1, "step": 3},
    )
    assert [outcome.exit_code for outcome in outcomes] == [2, 2]
    assert "NonFiniteError: step 3: the loss or its gradients are not finite" in outcomes[0].stderr
    assert [step.step for step in committed(tmp_path)] == [1, 2]


def test_a_world_size_that_does_not_fit_the_parallelism_is_refused_by_name(
    template: Template, tmp_path: Path
) -> None:
    config = train_config(parallelism={"tensor_parallel": 2})
    (outcome,) = template.run(generation(tmp_path, 1, config))
    assert outcome.exit_code == 2
    assert (
        "parallelism: a replica group of 2 ranks (tensorParallel 2) does not divide the world size"
        " 1: choose" in outcome.stderr
    )


def test_a_crash_in_a_thread_of_a_library_shows_its_stack() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.native_crash"],
        check=False,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == -signal.SIGSEGV
    assert "frame #1: " in ended.stderr
    assert "Fatal Python error: Segmentation fault" in ended.stderr
