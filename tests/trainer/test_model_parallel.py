"""Cut models, layers, stacks and sequences train as one process does, and resume from each other's checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regroup_trainer.history import audit
from tests.support.ranks import RankOutcome, Template, generation, train_config

FP32_ROUNDING = 1e-5
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"dimensions": {"layers": 4, "heads": 2, "width": 32}},
    "llama": {
        "name": "llama",
        "dimensions": {"layers": 4, "heads": 4, "width": 32, "keyValueHeads": 2, "tiedEmbeddings": False},
    },
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tp2": (2, {"tensorParallel": 2}),
    "ddp2-tp2": (4, {"tensorParallel": 2}),
    "fsdp2-tp2": (4, {"strategy": "fsdp", "tensorParallel": 2}),
    "pp2": (2, {"pipelineParallel": 2}),
    "fsdp2-pp2": (4, {"strategy": "fsdp", "pipelineParallel": 2}),
    "pp2-interleaved": (2, {"pipelineParallel": 2, "pipelineSchedule": "interleaved"}),
    "tp2-pp2": (4, {"tensorParallel": 2, "pipelineParallel": 2}),
    "cp2": (2, {"contextParallel": 2}),
    "fsdp2-cp2": (4, {"strategy": "fsdp", "contextParallel": 2}),
}


def config(model: str, parallelism: dict[str, Any], **sections: Any) -> Any:
    return train_config(
        model={"preset": None, **MODELS[model]},
        parallelism=parallelism,
        evaluation={"every_steps": 2, "samples": 7},
        training={"steps": 4, **sections},
    )


def succeeded(outcomes: list[RankOutcome]) -> list[RankOutcome]:
    assert [outcome.exit_code for outcome in outcomes] == [0] * len(outcomes), [o.stderr for o in outcomes]
    return outcomes


@pytest.fixture(scope="module")
def references(template: Template, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RankOutcome]:
    """The same runs in one process."""
    return {
        model: succeeded(template.run(generation(tmp_path_factory.mktemp(model), 1, config(model, {}))))[0]
        for model in MODELS
    }


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cut_model_trains_as_one_process_does(
    template: Template, tmp_path: Path, references: dict[str, RankOutcome], layout: str, model: str
) -> None:
    world, parallelism = LAYOUTS[layout]
    reference = references[model]
    leader = succeeded(template.run(generation(tmp_path, world, config(model, parallelism))))[0]
    assert leader.losses == pytest.approx(reference.losses, rel=FP32_ROUNDING)
    assert [e.loss for e in leader.evaluated] == pytest.approx([e.loss for e in reference.evaluated], rel=FP32_ROUNDING)
    norms = [p.gradient_norm for p in leader.progress]
    assert norms == pytest.approx([p.gradient_norm for p in reference.progress], rel=1e-4)
    assert audit(tmp_path) == []
