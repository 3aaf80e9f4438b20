"""Every strategy trains as one process does, and goes on from what any other has saved."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from regroup_trainer.checkpoint.history import audit
from tests.support.ranks import RankOutcome, Template, generation, succeeded, train_config
from tests.support.shown_states import chained, state
from tests.support.whole_state import equal

FP32_ROUNDING = 1e-5
STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {
    "ddp": (3, {"strategy": "ddp", "bucketMegabytes": 1}),
    "ddp-static": (2, {"strategy": "ddp", "staticGraph": True}),
    "zero": (3, {"strategy": "zero"}),
    "fsdp": (2, {"strategy": "fsdp"}),
    "fsdp-gathered": (2, {"strategy": "fsdp", "reshardAfterForward": False}),
    "fsdp-offload": (2, {"strategy": "fsdp", "cpuOffload": True}),
    "hsdp": (4, {"strategy": "hsdp", "shardGroupSize": 2}),
    "dp": (1, {"strategy": "dp"}),
}
"""World size and parallelism."""


def shown(
    template: Template,
    folder: Path,
    world_size: int,
    parallelism: dict[str, Any],
    entry: str = "show_state",
    **sections: Any,
) -> RankOutcome:
    """Rank 0 of a run whose whole state is in `folder`."""
    folder.mkdir(exist_ok=True)
    record = generation(
        folder / "job", world_size, train_config(parallelism=parallelism, **sections)
    )
    outcomes = template.run(
        record, entry=f"tests.support.rank_faults:{entry}", options={"folder": str(folder)}
    )
    succeeded(outcomes)
    return outcomes[0]


@pytest.fixture(scope="module")
def reference(
    template: Template, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RankOutcome, Any]:
    """What one process trains, and its last state."""
    folder = tmp_path_factory.mktemp("reference")
    return shown(template, folder, 1, {}), state(folder)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        *((name, "show_state") for name in STRATEGIES),
        ("ddp", "show_state_behind_guard"),
        ("hsdp", "show_state_behind_guard"),
    ],
)
def test_loss_and_parameters_are_those_of_one_process(
    template: Template, tmp_path: Path, reference: tuple[RankOutcome, Any], name: str, entry: str
) -> None:
    rank0 = shown(template, tmp_path, *STRATEGIES[name], entry)
    alone, expected = reference
    assert rank0.losses == pytest.approx(alone.losses, rel=FP32_ROUNDING)
    found = state(tmp_path)
    assert found["model"].keys() == expected["model"].keys()
    for parameter, value in found["model"].items():
        assert torch.allclose(value, expected["model"][parameter], rtol=1e-3, atol=2e-5), parameter
    assert audit(tmp_path / "job") == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_any_strategy_resumes_from_a_checkpoint_of_any_other(
    template: Template, tmp_path: Path
) -> None:
    ddp, zero, fsdp, hsdp, dp = (STRATEGIES[name] for name in ("ddp", "zero", "fsdp", "hsdp", "dp"))
    # A walk along which each of the sharded strategies follows each other one, and whole copies.
    walk = [ddp, zero, fsdp, hsdp, zero, hsdp, fsdp, zero, ddp, fsdp, dp, hsdp, ddp, hsdp, dp, zero]
    losses = chained(template, tmp_path, walk, steps=1)
    for before, after in pairwise(range(1, len(walk) + 1)):
        saved, restored = state(tmp_path / str(before)), state(tmp_path / str(after), "restored")
        assert equal(saved, restored), (walk[before - 1], walk[after - 1])
    alone = shown(template, tmp_path / "alone", 1, {}, training={"steps": len(walk)})
    assert losses == pytest.approx(alone.losses, rel=FP32_ROUNDING)
    assert audit(tmp_path / "job") == []


def test_only_the_last_micro_batch_communicates_and_the_commit_goes_first(
    template: Template, tmp_path: Path
) -> None:
    config = train_config(
        training={"micro_batch_size": 1, "steps": 3}, parallelism={"strategy": "ddp"}
    )
    entry, options = "tests.support.probes:count_collectives", {"folder": str(tmp_path)}
    outcomes = template.run(generation(tmp_path / "job", 2, config), entry=entry, options=options)
    succeeded(outcomes)
    for rank in (0, 1):
        steps = json.loads((tmp_path / f"{rank}.json").read_text())
        assert steps == [{"micro_batches": 5, "buckets": 1, "commits": 1, "before_buckets": 1}] * 3


def test_zero_shares_the_optimizer_state_out(template: Template, tmp_path: Path) -> None:
    held = {}
    for strategy in ("ddp", "zero"):
        folder = tmp_path / strategy
        folder.mkdir()
        config = train_config(parallelism={"strategy": strategy}, training={"steps": 1})
        entry, options = "tests.support.probes:measure_optimizer", {"folder": str(folder)}
        outcomes = template.run(generation(folder / "job", 2, config), entry=entry, options=options)
        succeeded(outcomes)
        held[strategy] = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    whole = held["ddp"][0]
    assert sum(held["zero"]) == pytest.approx(whole, rel=0.01)
    assert max(held["zero"]) < 0.6 * whole


@pytest.mark.parametrize(("hook", "tolerance"), [("bf16", 1e-3), ("powersgd", 2e-2)])
def test_compressed_gradients_train_nearly_as_well(
    template: Template, tmp_path: Path, hook: str, tolerance: float
) -> None:
    steps: dict[str, Any] = {"training": {"steps": 16}}
    parallelism = {"strategy": "ddp", "gradientHook": hook}
    found = shown(template, tmp_path / "hook", 2, parallelism, **steps).losses
    alone = shown(template, tmp_path / "alone", 1, {}, **steps).losses
    assert found == pytest.approx(alone, rel=tolerance)
    assert found != pytest.approx(alone, rel=1e-9)  # it did compress


def test_groups_are_printed_once(template: Template, tmp_path: Path) -> None:
    outcomes = template.run(
        generation(tmp_path, 4, train_config(parallelism=STRATEGIES["hsdp"][1]))
    )
    counts = [
        outcome.stderr.count("replicate [[0, 2], [1, 3]]; shard [[0, 1], [2, 3]]")
        for outcome in outcomes
    ]
    assert counts == [1, 0, 0, 0]


def test_data_parallel_threads_are_for_one_rank_and_for_teaching(
    template: Template, tmp_path: Path
) -> None:
    (alone,) = template.run(
        generation(tmp_path / "one", 1, train_config(parallelism={"strategy": "dp"}))
    )
    assert "nn.DataParallel) is for teaching" in alone.stderr
    outcomes = template.run(
        generation(tmp_path / "two", 2, train_config(parallelism={"strategy": "dp"}))
    )
    assert [outcome.exit_code for outcome in outcomes] == [2, 2]
    assert "the world size is 2: use 'ddp'" in outcomes[0].stderr


@pytest.mark.parametrize(
    "parallelism",
    [
        {"strategy": "fsdp", "bucketMegabytes": 5},
        {"strategy": "ddp", "cpuOffload": True},
        {"strategy": "zero", "tensorParallel": 2},
    ],
)
def test_options_of_other_strategies_are_refused(parallelism: dict[str, Any]) -> None:
    with pytest.raises(
        ValidationError, match=f"of no meaning with strategy '{parallelism['strategy']}'"
    ):
        train_config(parallelism=parallelism)


def test_scaled_positions_are_refused_for_a_model_without_positions() -> None:
    scaled = {"layers": 3, "width": 8, "rotaryScaling": {"factor": 8}}
    with pytest.raises(
        ValidationError, match=r"dimensions\.rotaryScaling: of no meaning for a res"
    ):
        train_config(model={"name": "resnet", "preset": None, "dimensions": scaled})


def test_options_of_whole_copies_are_refused_with_model_parallelism() -> None:
    with pytest.raises(
        ValidationError,
        match=r"staticGraph: of no meaning with model parallelism \(tensorParallel 2\)",
    ):
        train_config(parallelism={"tensorParallel": 2, "staticGraph": True})
