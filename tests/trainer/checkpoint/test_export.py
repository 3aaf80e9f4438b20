"""Models go out in Hugging Face's layout, and come in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from regroup_trainer import models
from regroup_trainer.checkpoint.catalog import published
from regroup_trainer.checkpoint.export import export, initialize_from
from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.errors import DataError
from regroup_trainer.protocol.config import ModelConfig
from tests.support.ranks import Template, generation, succeeded, train_config

LLAMA = {"name": "llama", "preset": "tiny"}
VOCABULARY = 256


@pytest.fixture(scope="module")
def trained(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job's directory after two steps of a Llama on two sharded ranks."""
    directory = tmp_path_factory.mktemp("llama")
    config = train_config(model=LLAMA, parallelism={"strategy": "fsdp"}, training={"steps": 2})
    outcomes = template.run(generation(directory, 2, config))
    succeeded(outcomes)
    return directory


def exported(directory: Path, target: Path, **options: int) -> Path:
    (newest,) = published(Layout(directory))
    assert newest.manifest
    export(newest.path, newest.manifest, target, **options)
    return target


def ours(folder: Path) -> torch.nn.Module:
    model = models.build(ModelConfig.model_validate(LLAMA), VOCABULARY).to_empty(device="cpu")
    initialize_from(model, folder, "llama")
    return model.eval()


@pytest.mark.parametrize("shard_bytes", [5 * 10**9, 50_000])
def test_transformers_loads_an_exported_llama_and_computes_the_same(
    trained: Path, tmp_path: Path, shard_bytes: int
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = exported(trained, tmp_path / "out", shard_bytes=shard_bytes)
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    tokens = torch.arange(2 * 16).reshape(2, 16) * 7 % VOCABULARY
    with torch.no_grad():
        torch.testing.assert_close(
            ours(folder)(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5
        )


def test_a_large_model_is_split_with_an_index(trained: Path, tmp_path: Path) -> None:
    folder = exported(trained, tmp_path / "out", shard_bytes=50_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {path.name for path in folder.glob("*.safetensors")}
    assert set(index["weight_map"].values()) == files
    assert len(files) > 1
    assert "lm_head.weight" not in index["weight_map"]  # tied


def test_a_run_begins_with_given_weights(template: Template, trained: Path, tmp_path: Path) -> None:
    folder = exported(trained, tmp_path / "out")
    begun = train_config(model={**LLAMA, "initialize_from": str(folder)}, training={"steps": 1})
    plain = train_config(model=LLAMA, training={"steps": 1})
    losses = []
    for number, config in enumerate((begun, plain)):
        outcome = template.run(generation(tmp_path / f"job-{number}", 1, config))[0]
        assert outcome.exit_code == 0, outcome.stderr
        losses.append(outcome.losses[0])
    assert losses[0] is not None
    assert losses[1] is not None
    assert losses[0] < losses[1]


def test_weights_that_do_not_fit_are_named_with_what_to_do(trained: Path, tmp_path: Path) -> None:
    folder = exported(trained, tmp_path / "out")
    wider = ModelConfig.model_validate({"name": "llama", "preset": "10m"})
    with pytest.raises(
        DataError, match=r"has shape \[256, 64\] instead of \[256, 384\]: choose the preset"
    ):
        initialize_from(models.build(wider, VOCABULARY).to_empty(device="cpu"), folder, "llama")
    with pytest.raises(DataError, match=r"holds no \*\.safetensors: name a folder"):
        initialize_from(torch.nn.Linear(1, 1), tmp_path, "llama")
