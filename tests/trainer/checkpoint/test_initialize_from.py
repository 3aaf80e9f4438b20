"""Given weights are right, or refused. transformers is the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor

from regroup_trainer import data as datasets
from regroup_trainer import models
from regroup_trainer.checkpoint.initialize_from import initialize_from
from regroup_trainer.data.batch import BatchPlanner
from regroup_trainer.data.order import SampleOrder
from regroup_trainer.errors import ConfigurationError, DataError
from regroup_trainer.models import Model
from regroup_trainer.protocol.config import ModelConfig, TrainConfig
from tests.support.hugging_face import (
    DIMENSIONS,
    ROTARY,
    SCALED,
    SIZES,
    VOCABULARY,
    llama,
    theirs,
    weights,
    write,
    write_split,
)
from tests.support.models import tokens
from tests.support.ranks import Template, generation, succeeded, train_config

UNTIED = {**DIMENSIONS, "tiedEmbeddings": False}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def ours(config: ModelConfig) -> Model:
    model = models.build(config, VOCABULARY).to_empty(device="cpu")
    initialize_from(model, config, VOCABULARY)
    return model.eval()


def losses(model: Model, reference: Any) -> tuple[float, float]:
    """Ours and theirs, in nats per token."""
    text = tokens((3, 101), below=VOCABULARY)
    inputs, targets = text[:, :-1], text[:, 1:]
    with torch.no_grad():
        total = model(inputs, targets, torch.ones(len(text)))
        return float(total) / targets.numel(), their_loss(reference, inputs, targets)


def their_loss(reference: Any, inputs: Tensor, targets: Tensor) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(reference(inputs).logits.flatten(0, 1), targets.flatten()))


@pytest.mark.parametrize(
    ("kind", "config", "dimensions"),
    [
        ("Llama", {"rope_parameters": ROTARY, "tie_word_embeddings": True}, SCALED),
        ("Llama", {}, UNTIED),
        ("Llama", {"rope_theta": 123456.0}, {**UNTIED, "rotaryBase": 123456}),
        ("Llama", {"num_key_value_heads": None}, {**UNTIED, "keyValueHeads": None}),
        ("Mistral", {"sliding_window": None}, UNTIED),
    ],
)
def test_the_first_loss_is_that_of_transformers(
    tmp_path: Path, kind: str, config: dict[str, Any], dimensions: dict[str, Any]
) -> None:
    reference = theirs(tmp_path, kind, **{**SIZES, "rms_norm_eps": 1e-5, **config})
    our_loss, their_loss = losses(ours(llama(tmp_path, dimensions)), reference)
    assert our_loss == pytest.approx(their_loss, abs=1e-5)


def test_weights_of_half_precision_are_taken_exactly(tmp_path: Path) -> None:
    reference = theirs(tmp_path, "Llama", **SIZES, rms_norm_eps=1e-5, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in reference.parameters()} == {torch.bfloat16}
    state = ours(llama(tmp_path, UNTIED)).state_dict()
    torch.testing.assert_close(
        state["embedding.weight"], reference.state_dict()["model.embed_tokens.weight"].float()
    )


@pytest.mark.parametrize("other", [{"rotaryScaling": None}, {"rotaryBase": 1e4}])
def test_a_job_that_would_compute_something_else_is_refused(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    theirs(tmp_path, "Llama", **SIZES, rms_norm_eps=1e-5, rope_parameters=ROTARY)
    with pytest.raises(ConfigurationError, match=r"rope_(scaling|theta) is .*, and rotary\w+ of"):
        ours(llama(tmp_path, {**SCALED, "tiedEmbeddings": False, **other}))


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("Qwen2", SIZES, 'model_type is "qwen2"'),
        ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4}, 'model_type is "gpt2"'),
        ("Mistral", {**SIZES, "rms_norm_eps": 1e-5}, "sliding_window is 4096"),
        ("Llama", SIZES, "rms_norm_eps is 1e-06"),
        ("Llama", {**SIZES, "attention_bias": True}, "attention_bias is true"),
        ("Llama", {**SIZES, "mlp_bias": True}, "mlp_bias is true"),
        ("Llama", {**SIZES, "hidden_act": "gelu"}, 'hidden_act is "gelu"'),
        ("Llama", {**SIZES, "head_dim": 16}, "head_dim is 16"),
        (
            "Llama",
            {**SIZES, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            'rope_parameters.rope_type is "linear"',
        ),
    ],
)
def test_a_model_that_is_not_built_in_is_refused_by_the_field(
    tmp_path: Path, kind: str, config: dict[str, Any], message: str
) -> None:
    theirs(tmp_path, kind, **config)
    with pytest.raises(ConfigurationError) as refused:
        ours(llama(tmp_path, UNTIED))
    assert f"model.initializeFrom: {tmp_path}/config.json: " in str(refused.value)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("ranks", "parallelism"),
    [
        (1, {}),
        (2, {"strategy": "fsdp"}),
        (2, {"tensor_parallel": 2}),
        (2, {"pipeline_parallel": 2}),  # a part of it knows only some of the weights
    ],
)
def test_ranks_begin_with_the_loss_of_transformers(
    template: Template, tmp_path: Path, ranks: int, parallelism: dict[str, Any]
) -> None:
    dimensions = {**SCALED, "rotaryScaling": {"factor": 32, "originalLength": 16}}
    rotary = {**ROTARY, "original_max_position_embeddings": 16}
    given = {**SIZES, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    folder = tmp_path / "hf"
    reference = theirs(folder, "Llama", 256, **given, rope_parameters=rotary)
    model = llama(folder, dimensions).model_dump()
    config = train_config(model=model, parallelism=parallelism, training={"steps": 1})
    (loss,) = succeeded(template.run(generation(tmp_path / "job", ranks, config)))[0].losses
    assert loss == pytest.approx(their_loss(reference, *first_batch(config, tmp_path)), abs=1e-5)


def first_batch(config: TrainConfig, directory: Path) -> tuple[Tensor, Tensor]:
    data = datasets.load(config, directory)
    size = config.training.global_batch_size
    order = SampleOrder(data.samples, config.training.seed)
    plan = BatchPlanner(
        order=order,
        global_batch_size=size,
        micro_batch_size=size,
        rank=0,
        world_size=1,
        multiple=1,
        exact=False,
    ).plan(0)
    read = data.read_training(plan.own_ids)
    return torch.from_numpy(read.inputs), torch.from_numpy(read.targets)


def test_missing_surplus_and_misshapen_weights_are_listed(tmp_path: Path) -> None:
    tensors = weights()
    del tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    tensors["model.layers.2.mlp.up_proj.weight"] = torch.zeros(48, 32)
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(32, 48)
    tensors["model.layers.1.mlp.gate_proj.weight"] = torch.zeros(48, 32, dtype=torch.int8)
    with pytest.raises(DataError) as refused:
        ours(llama(write(tmp_path, tensors)))
    for part in (
        "missing weights: model.norm.weight;",
        "surplus weights: model.layers.0.self_attn.q_proj.bias, model.layers.2.mlp.up_proj.weight;",
        "another shape: model.layers.1.mlp.up_proj.weight [32, 48] instead of [48, 32];",
        "other types than F32, BF16, F16: model.layers.1.mlp.gate_proj.weight I8:",
    ):
        assert part in str(refused.value)


def test_a_long_list_of_weights_is_cut(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing weights: (\S+, ){4}\S+ and 15 more: copy") as it:
        ours(llama(write(tmp_path, {})))
    assert len(str(it.value)) < 1000


def test_a_refused_folder_leaves_the_parameters_alone(tmp_path: Path) -> None:
    config = llama(write(tmp_path, {**weights(), "x": torch.zeros(1)}))
    model = models.build(config, VOCABULARY).to_empty(device="cpu")
    torch.nn.init.constant_(model.get_parameter("embedding.weight"), 7.0)
    with pytest.raises(DataError, match="surplus weights: x"):
        initialize_from(model, config, VOCABULARY)
    assert bool((model.get_parameter("embedding.weight") == 7.0).all())


def test_what_only_repeats_other_weights_is_no_surplus(tmp_path: Path) -> None:
    tensors = weights()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    ours(llama(write(tmp_path, tensors)))
    for other in (tensors["lm_head.weight"] + 1, tensors["lm_head.weight"].half()):
        with pytest.raises(DataError, match=r"surplus weights: lm_head\.weight"):
            ours(llama(write(tmp_path, {**tensors, "lm_head.weight": other})))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (8,)),
        ("model.layers.2.self_attn.rotary_emb.inv_freq", (4,)),
        ("vision.rotary_emb.inv_freq", (4,)),
    ],
)
def test_frequencies_of_another_model_are_surplus(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(DataError, match=f"surplus weights: {name}"):
        ours(llama(write(tmp_path, {**weights(), name: torch.ones(shape)})))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_that_are_not_finite_are_refused_by_name(
    tmp_path: Path, value: float, dtype: torch.dtype
) -> None:
    tensors, name = weights(), "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(dtype)
    tensors[name][3, 5] = value
    with pytest.raises(DataError, match=rf"{name} has 1 of 1536 values that are NaN or infinite"):
        ours(llama(write(tmp_path, tensors)))


def test_a_folder_of_several_files_is_taken_whole(tmp_path: Path) -> None:
    tensors = weights()
    names = sorted(tensors)
    parts = {
        f"model-0000{n + 1}-of-00002.safetensors": {name: tensors[name] for name in names[n::2]}
        for n in range(2)
    }
    one = ours(llama(write(tmp_path / "one")))
    split = ours(llama(write_split(tmp_path / "split", parts)))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, split.state_dict()[name]), name


def test_a_gpt_does_not_take_the_weights_of_a_llama(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r'is "llama", and model\.name gpt takes'):
        ours(ModelConfig(name="gpt", preset="tiny", initialize_from=str(write(tmp_path))))
