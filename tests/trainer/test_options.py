"""Options of memory and speed that leave the training as it is, and an update rule that does not, on several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import RankOutcome, Template, generation, train_config

FP32_ROUNDING = 1e-5


def trained(template: Template, directory: Path, world_size: int, **sections: dict[str, Any]) -> RankOutcome:
    """The leader of a short run."""
    config = train_config(evaluation={"every_steps": 3, "samples": 7}, **sections)
    outcomes = template.run(generation(directory, world_size, config))
    assert [outcome.exit_code for outcome in outcomes] == [0] * world_size, outcomes[0].stderr
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
    saving = trained(template, tmp_path / "saving", 2, parallelism={"strategy": strategy}, **options)
    assert saving.losses == pytest.approx(plain.losses, rel=FP32_ROUNDING)
    assert [e.loss for e in saving.evaluated] == pytest.approx([e.loss for e in plain.evaluated], rel=FP32_ROUNDING)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_loss_in_chunks_is_the_same_loss(template: Template, tmp_path: Path, strategy: str) -> None:
    plain = trained(template, tmp_path / "plain", 1)
    config = train_config(parallelism={"strategy": strategy}, model={"loss_chunks": 3})
    outcomes = template.run(generation(tmp_path / "chunks", 2, config), entry="tests.trainer.telling:chunks")
    assert outcomes[0].losses == pytest.approx(plain.losses, rel=FP32_ROUNDING)
    assert "chunks: {3}" in outcomes[0].stderr


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_llama_trains_on_several_ranks_as_on_one(template: Template, tmp_path: Path, strategy: str) -> None:
    llama = {"name": "llama"}
    alone = trained(template, tmp_path / "one", 1, model=llama)
    together = trained(template, tmp_path / "two", 2, model=llama, parallelism={"strategy": strategy})
    assert together.losses == pytest.approx(alone.losses, rel=FP32_ROUNDING)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_muon_on_several_ranks_orthogonalises_whole_matrices(template: Template, tmp_path: Path, strategy: str) -> None:
    muon = {"name": "muon"}
    alone = trained(template, tmp_path / "one", 1, optimizer=muon)
    together = trained(template, tmp_path / "two", 2, optimizer=muon, parallelism={"strategy": strategy})
    assert together.losses == pytest.approx(alone.losses, rel=1e-3)  # bf16 inside; parts alone would be off by far more
    adamw = trained(template, tmp_path / "adamw", 1)
    assert alone.losses[-1] != pytest.approx(adamw.losses[-1], rel=1e-2)
