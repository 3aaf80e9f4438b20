"""Options of memory and speed that leave the training as it is, and an update rule that does not,
on several ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regroup_trainer.protocol.generation import Decision, GenerationNumber
from tests.support.ranks import RankOutcome, Template, generation, succeeded, train_config

FP32_ROUNDING = 1e-5


def trained(
    template: Template, directory: Path, world_size: int, **sections: dict[str, Any]
) -> RankOutcome:
    """Rank 0 of a short run."""
    config = train_config(evaluation={"every_steps": 3, "samples": 7}, **sections)
    outcomes = template.run(generation(directory, world_size, config))
    succeeded(outcomes)
    return outcomes[0]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    "options",
    [
        {"training": {"activation_checkpointing": "full"}},
        {"training": {"activation_checkpointing": "selective"}},
    ],
    ids=["full", "selective"],
)
def test_what_saves_memory_changes_no_loss(
    template: Template, tmp_path: Path, strategy: str, options: dict[str, Any]
) -> None:
    plain = trained(template, tmp_path / "plain", 1)
    saving = trained(
        template, tmp_path / "saving", 2, parallelism={"strategy": strategy}, **options
    )
    assert saving.losses == pytest.approx(plain.losses, rel=FP32_ROUNDING)
    assert [e.loss for e in saving.evaluated] == pytest.approx(
        [e.loss for e in plain.evaluated], rel=FP32_ROUNDING
    )


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_loss_in_chunks_is_the_same_loss(
    template: Template, tmp_path: Path, strategy: str
) -> None:
    plain = trained(template, tmp_path / "plain", 1)
    config = train_config(parallelism={"strategy": strategy}, model={"loss_chunks": 3})
    outcomes = template.run(
        generation(tmp_path / "chunks", 2, config), entry="tests.support.rank_observers:chunks"
    )
    assert outcomes[0].losses == pytest.approx(plain.losses, rel=FP32_ROUNDING)
    assert "chunks: {3}" in outcomes[0].stderr


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_llama_trains_on_several_ranks_as_on_one(
    template: Template, tmp_path: Path, strategy: str
) -> None:
    llama = {"name": "llama"}
    alone = trained(template, tmp_path / "one", 1, model=llama)
    together = trained(
        template, tmp_path / "two", 2, model=llama, parallelism={"strategy": strategy}
    )
    assert together.losses == pytest.approx(alone.losses, rel=FP32_ROUNDING)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_muon_on_several_ranks_orthogonalises_whole_matrices(
    template: Template, tmp_path: Path, strategy: str
) -> None:
    muon = {"name": "muon"}
    alone = trained(template, tmp_path / "one", 1, optimizer=muon)
    together = trained(
        template, tmp_path / "two", 2, optimizer=muon, parallelism={"strategy": strategy}
    )
    assert together.losses == pytest.approx(
        alone.losses, rel=1e-3
    )  # bf16 inside; parts alone would be off by far more
    adamw = trained(template, tmp_path / "adamw", 1)
    assert alone.losses[-1] != pytest.approx(adamw.losses[-1], rel=1e-2)


def test_muon_resumes_in_another_layout(template: Template, tmp_path: Path) -> None:
    muon = {"name": "muon"}
    expected = trained(template, tmp_path / "undisturbed", 1, optimizer=muon).losses
    first = template.run(
        generation(tmp_path / "moved", 2, train_config(optimizer=muon)),
        decisions={3: Decision.LEAVE},
    )
    sharded = train_config(optimizer=muon, parallelism={"strategy": "fsdp"})
    number = GenerationNumber(1, 2)
    second = template.run(generation(tmp_path / "moved", 3, sharded, number=number))
    assert second[0].restored.step == 3
    assert first[0].losses + second[0].losses == pytest.approx(expected, rel=1e-3)


def test_the_attention_kernel_is_reported_at_the_start(template: Template, tmp_path: Path) -> None:
    reported = [
        trained(template, tmp_path / kernel, 1, model={"attention": kernel}).restored.attention
        for kernel in ("auto", "math")
    ]
    assert reported == ["flash", "math"]


@pytest.mark.parametrize(
    ("sections", "refusal"),
    [
        (
            {"model": {"loss_chunks": 2}, "parallelism": {"tensor_parallel": 2}},
            "model.lossChunks: 2 needs the whole",
        ),
        (
            {"optimizer": {"name": "muon"}, "parallelism": {"strategy": "zero"}},
            "optimizer.name: 'muon' works on whole",
        ),
        ({"model": {"attention": "cudnn"}}, "model.attention: 'cudnn' cannot serve"),
    ],
    ids=["chunks-tensor", "muon-zero", "cudnn"],
)
def test_what_cannot_be_combined_is_refused(
    template: Template, tmp_path: Path, sections: dict[str, dict[str, Any]], refusal: str
) -> None:
    outcomes = template.run(generation(tmp_path, 2, train_config(**sections)))
    refused = [
        outcome.stderr for outcome in outcomes if outcome.exit_code == 2
    ]  # a slower one may only miss its peer
    assert refused and all(refusal in stderr for stderr in refused)
