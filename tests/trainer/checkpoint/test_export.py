"""Models go out in Hugging Face's layout, and come in."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file

from regroup_trainer import models
from regroup_trainer.checkpoint.catalog import published
from regroup_trainer.checkpoint.export import export, write_stream
from regroup_trainer.checkpoint.initialize_from import initialize_from
from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.protocol.config import ModelConfig
from tests.support.ranks import Template, generation, succeeded, train_config

LLAMA: dict[str, Any] = {
    "name": "llama",
    "dimensions": {
        "layers": 2,
        "heads": 4,
        "width": 64,
        "key_value_heads": 2,
        "rotary_scaling": {"factor": 32, "original_length": 16},
    },
}
TINY = {"preset": None, **LLAMA}
VOCABULARY = 256


@pytest.fixture(scope="module")
def trained(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job's directory after two steps of a Llama on two sharded ranks."""
    directory = tmp_path_factory.mktemp("llama")
    config = train_config(model=TINY, parallelism={"strategy": "fsdp"}, training={"steps": 2})
    outcomes = template.run(generation(directory, 2, config))
    succeeded(outcomes)
    return directory


def exported(directory: Path, target: Path, **options: int) -> Path:
    (newest,) = published(Layout(directory))
    assert newest.manifest
    export(newest.path, newest.manifest, target, **options)
    return target


def ours(folder: Path) -> torch.nn.Module:
    config = ModelConfig.model_validate({**LLAMA, "initialize_from": str(folder)})
    model = models.build(config, VOCABULARY).to_empty(device="cpu")
    initialize_from(model, config, VOCABULARY)
    return model.eval()


@pytest.mark.parametrize("shard_bytes", [5 * 10**9, 50_000])
def test_transformers_loads_an_exported_llama_and_computes_the_same(
    trained: Path, tmp_path: Path, shard_bytes: int
) -> None:
    import transformers

    folder = exported(trained, tmp_path / "out", shard_bytes=shard_bytes)
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_scaling"]["rope_type"] == "llama3"
    assert config["max_position_embeddings"] == 32 * 16
    theirs: Any = transformers.LlamaForCausalLM.from_pretrained(folder)
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


@pytest.mark.parametrize("part_bytes", [2**28, 1])
def test_a_stream_has_what_the_files_have(trained: Path, tmp_path: Path, part_bytes: int) -> None:
    weights = load_file(exported(trained, tmp_path / "out") / "model.safetensors")
    (newest,) = published(Layout(trained))
    assert newest.manifest
    out = io.BytesIO()
    checksum = write_stream(newest.path, newest.manifest, out, part_bytes)
    assert checksum == hashlib.blake2b(out.getvalue()).hexdigest()
    streamed = load(out.getvalue())
    assert streamed.keys() == weights.keys()
    assert all(torch.equal(streamed[name], weights[name]) for name in weights)


def test_the_command_writes_a_stream_to_standard_output(trained: Path) -> None:
    words = ["-m", "regroup_trainer.checkpoint", "export", str(trained), "--out", "-"]
    done = subprocess.run([sys.executable, *words], capture_output=True, check=True, timeout=200)
    *verified, end = done.stderr.decode().splitlines()
    assert end == f"step 2 blake2b {hashlib.blake2b(done.stdout).hexdigest()}"
    assert "verified __0_0.distcp" in verified
    assert "model.embed_tokens.weight" in load(done.stdout)


def test_a_run_begins_with_given_weights(template: Template, trained: Path, tmp_path: Path) -> None:
    folder = exported(trained, tmp_path / "out")
    begun = train_config(model={**TINY, "initialize_from": str(folder)}, training={"steps": 1})
    plain = train_config(model=TINY, training={"steps": 1})
    losses = []
    for number, config in enumerate((begun, plain)):
        outcome = template.run(generation(tmp_path / f"job-{number}", 1, config))[0]
        assert outcome.exit_code == 0, outcome.stderr
        losses.append(outcome.losses[0])
    assert losses[0] is not None
    assert losses[1] is not None
    assert losses[0] < losses[1]


def test_a_gpt_goes_out_and_comes_back(template: Template, tmp_path: Path) -> None:
    """transformers has no such model; its config.json is compared as well."""
    config = train_config(training={"steps": 1})
    succeeded(template.run(generation(tmp_path / "job", 1, config)))
    folder = exported(tmp_path / "job", tmp_path / "out")
    again = train_config(model={"initialize_from": str(folder)}, training={"steps": 1})
    first, second = (
        template.run(generation(tmp_path / name, 1, it))[0].losses[0]
        for name, it in (("plain", config), ("begun", again))
    )
    assert first is not None
    assert second is not None
    assert second < first
    wider = train_config(model={"preset": "1m", "initialize_from": str(folder)})
    refused = template.run(generation(tmp_path / "wider", 1, wider))[0]
    assert refused.exit_code == 2
    assert "layers is 2, and layers of the job is 5" in refused.stderr
