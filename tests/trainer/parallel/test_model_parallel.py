"""Models cut by layers, stack or sequence train as one process does, and resume from each other's
checkpoints.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from regroup_trainer.checkpoint.history import audit
from regroup_trainer.protocol.generation import Decision, GenerationNumber
from tests.support.ranks import RankOutcome, Template, generation, succeeded, train_config
from tests.support.shown_states import state
from tests.support.whole_state import equal

FP32_ROUNDING = 1e-5
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"dimensions": {"layers": 4, "heads": 2, "width": 32}},
    "llama": {
        "name": "llama",
        "dimensions": {
            "layers": 4,
            "heads": 4,
            "width": 32,
            "keyValueHeads": 2,
            "tiedEmbeddings": False,
        },
    },
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tp2": (2, {"tensorParallel": 2}),
    "ddp2-tp2": (4, {"tensorParallel": 2}),
    "fsdp2-tp2": (4, {"strategy": "fsdp", "tensorParallel": 2}),
    "hsdp4-tp2": (8, {"strategy": "hsdp", "shardGroupSize": 2, "tensorParallel": 2}),
    "pp2": (2, {"pipelineParallel": 2}),
    "fsdp2-pp2": (4, {"strategy": "fsdp", "pipelineParallel": 2}),
    "hsdp4-pp2": (8, {"strategy": "hsdp", "shardGroupSize": 2, "pipelineParallel": 2}),
    "pp2-interleaved": (2, {"pipelineParallel": 2, "pipelineSchedule": "interleaved"}),
    "tp2-pp2": (4, {"tensorParallel": 2, "pipelineParallel": 2}),
    "cp2": (2, {"contextParallel": 2}),
    "fsdp2-cp2": (4, {"strategy": "fsdp", "contextParallel": 2}),
    "ddp2": (2, {}),
    "fsdp3": (3, {"strategy": "fsdp"}),
}
"""World size and parallelism."""
ALONE: tuple[int, dict[str, Any]] = (1, {})
CASES = [
    *(("gpt", layout) for layout in LAYOUTS if layout not in ("ddp2", "fsdp3", "hsdp4-tp2")),
    pytest.param("gpt", "hsdp4-tp2", marks=pytest.mark.long),  # eight processes, as hsdp4-pp2
    ("llama", "tp2-pp2"),
    ("llama", "cp2"),
]


def run(
    template: Template,
    folder: Path,
    model: str,
    layout: tuple[int, dict[str, Any]],
    number: int = 1,
    leave: int | None = None,
    **training: Any,
) -> RankOutcome:
    """Rank 0 of a generation whose state, as restored and at the end, is in `folder`."""
    world_size, parallelism = layout
    config = train_config(
        model={"preset": None, **MODELS[model]},
        parallelism=parallelism,
        evaluation={"every_steps": 2, "samples": 7},
        training={"steps": 3, **training},
    )
    record = generation(folder / "job", world_size, config, number=GenerationNumber(1, number))
    outcomes = template.run(
        record,
        entry="tests.support.rank_faults:show_state",
        options={"folder": str(folder)},
        decisions={leave: Decision.LEAVE} if leave else {},
    )
    succeeded(outcomes)
    return outcomes[0]


def require_near(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.allclose(value, expected[name], rtol=1e-3, atol=2e-5), name


@pytest.fixture(scope="module")
def references(
    template: Template, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[RankOutcome, dict[str, torch.Tensor]]]:
    """What one process trains, and the parameters in the end."""
    folders = {model: tmp_path_factory.mktemp(model) for model in MODELS}
    return {
        model: (run(template, folder, model, ALONE), state(folder)["model"])
        for model, folder in folders.items()
    }


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_a_model_parallel_model_trains_as_one_process_does(
    template: Template,
    tmp_path: Path,
    references: dict[str, tuple[RankOutcome, dict[str, torch.Tensor]]],
    model: str,
    layout: str,
) -> None:
    alone, parameters = references[model]
    rank0 = run(template, tmp_path, model, LAYOUTS[layout])
    assert rank0.losses == pytest.approx(alone.losses, rel=FP32_ROUNDING)
    assert [e.loss for e in rank0.evaluated] == pytest.approx(
        [e.loss for e in alone.evaluated], rel=FP32_ROUNDING
    )
    norms = [report.gradient_norm for report in rank0.progress]
    assert norms == pytest.approx([report.gradient_norm for report in alone.progress], rel=1e-4)
    require_near(state(tmp_path)["model"], parameters)
    assert audit(tmp_path / "job") == []


@pytest.mark.long
def test_any_layout_resumes_from_the_checkpoint_of_any_other(
    template: Template, tmp_path: Path
) -> None:
    alone = run(template, _folder(tmp_path / "alone"), "gpt", ALONE, steps=11)
    chain = [
        "tp2",
        "ddp2",
        "pp2-interleaved",
        "fsdp2-tp2",
        "cp2",
        "fsdp3",
        "tp2-pp2",
        "pp2",
        "fsdp2-cp2",
        "ddp2-tp2",
    ]
    losses: list[float | None] = []
    saved: Any = None
    folder = _folder(tmp_path / "chain")
    for number, name in enumerate(chain, start=1):
        rank0 = run(template, folder, "gpt", LAYOUTS[name], number, leave=number, steps=11)
        losses += rank0.losses
        if number > 1:
            assert equal(state(folder, "restored"), saved), name
        saved = state(folder)
    assert losses == pytest.approx(alone.losses[: len(losses)], rel=FP32_ROUNDING)
    assert audit(folder / "job") == []


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ((3, {"tensorParallel": 3}), "tensorParallel: 3 does not divide 2, the heads of the model"),
        (
            (3, {"contextParallel": 3}),
            "contextParallel: 3 does not divide training.sequenceLength 32",
        ),
        (
            (3, {"pipelineParallel": 3, "pipelineSchedule": "interleaved"}),
            "makes 6 stages of 4 layers",
        ),
        (
            (3, {"pipelineParallel": 2}),
            "replica group of 2 ranks (pipelineParallel 2) does not divide the world size 3",
        ),
    ],
)
def test_a_model_that_cannot_be_split_is_refused_with_what_to_do(
    template: Template, tmp_path: Path, layout: tuple[int, dict[str, Any]], words: str
) -> None:
    world_size, parallelism = layout
    config = train_config(model={"preset": None, **MODELS["gpt"]}, parallelism=parallelism)
    outcomes = template.run(generation(tmp_path, world_size, config))
    assert [outcome.exit_code for outcome in outcomes] == [2] * world_size
    assert words in outcomes[0].stderr


def test_a_model_parallel_model_stays_near_in_bf16(template: Template, tmp_path: Path) -> None:
    alone = run(template, _folder(tmp_path / "alone"), "gpt", ALONE)
    for name in ("tp2-pp2", "cp2"):
        rank0 = run(template, _folder(tmp_path / name), "gpt", LAYOUTS[name], precision="bf16")
        assert rank0.losses == pytest.approx(alone.losses, rel=1e-2)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("layout", ["ddp2-tp2", "cp2"])
def test_generations_that_are_over_leave_no_process_groups_behind(
    template: Template, tmp_path: Path, layout: str
) -> None:
    world_size, parallelism = LAYOUTS[layout]
    record = generation(
        tmp_path, world_size, train_config(parallelism=parallelism, training={"steps": 2})
    )
    options = {"folder": str(tmp_path), "generations": 3}
    outcomes = template.run(record, entry="tests.support.probes:count_threads", options=options)
    succeeded(outcomes)
    assert json.loads((tmp_path / "0.json").read_text()) == [0, 0, 0]
