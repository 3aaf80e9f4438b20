"""The transformers: causal, initialised by seed and name, of the size that their names say, with a
loss in chunks.
"""

from __future__ import annotations

import pytest
import torch

from regroup.planning.transformer import of_model
from regroup_trainer import models
from regroup_trainer.models.loss import loss_sum
from regroup_trainer.protocol.config import PRESETS, VOCABULARIES, ModelConfig
from tests.support.models import built, tokens

DECODERS = ["gpt", "llama"]


@pytest.mark.parametrize("name", DECODERS)
def test_a_prediction_depends_on_no_later_token(name: str) -> None:
    model = built(name)
    text = tokens((1, 16))
    changed = text.clone()
    changed[0, 9:] = 0
    assert torch.equal(model(text)[0, :9], model(changed)[0, :9])
    assert not torch.equal(model(text)[0, 9], model(changed)[0, 9])


@pytest.mark.parametrize("name", DECODERS)
def test_the_order_of_earlier_tokens_matters(name: str) -> None:
    model = built(name)
    text = torch.tensor([[1, 2, 3, 4]])
    assert not torch.allclose(model(text)[0, 3], model(text[:, [1, 0, 2, 3]])[0, 3])


@pytest.mark.parametrize("name", DECODERS)
def test_weights_are_a_function_of_the_seed(name: str) -> None:
    first, again, other = (built(name, seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[weight], again[weight]) for weight in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


@pytest.mark.parametrize("name", DECODERS)
def test_blocks_do_not_start_alike(name: str) -> None:
    weights = [
        dict(block.named_parameters())["attention.project_out.weight"]
        for block in built(name).blocks
    ]
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("name", DECODERS)
def test_what_adds_to_the_residual_stream_starts_smaller(name: str) -> None:
    weights = built(name).state_dict()
    inner, outer = (
        weights[f"blocks.0.attention.{part}.weight"].std()
        for part in ("project_in" if name == "gpt" else "query", "project_out")
    )
    assert float(outer / inner) == pytest.approx(0.5, rel=0.1)  # 1 / sqrt(2 x 2 layers)


def test_input_and_output_share_their_embedding_unless_configured_otherwise() -> None:
    def of_the_vocabulary(model: torch.nn.Module) -> list[str]:
        return [name for name, parameter in model.named_parameters() if 311 in parameter.shape]

    assert of_the_vocabulary(built("gpt", classes=311)) == ["embedding.weight"]
    assert of_the_vocabulary(built("llama", classes=311)) == ["embedding.weight"]
    untied = {"layers": 1, "heads": 2, "width": 32, "tied_embeddings": False}
    apart = built("llama", None, classes=311, dimensions=untied)
    assert of_the_vocabulary(apart) == ["embedding.weight", "head.weight"]
    assert apart(tokens((2, 5))).shape == (2, 5, 311)


PUBLISHED = {"1b": 1_235_814_400, "3b": 3_212_749_824, "8b": 8_030_261_248, "70b": 70_553_706_496}
"""Parameters of Llama 3.2 1B and 3B, Llama 3 8B and 70B, tied embeddings counted once."""


@pytest.mark.parametrize(("preset", "parameters"), PUBLISHED.items())
def test_the_presets_of_llama_have_exactly_the_published_parameters(
    preset: str, parameters: int
) -> None:
    assert count("llama", preset) == parameters


@pytest.mark.parametrize(
    ("name", "preset", "parameters"),
    [
        ("gpt", "tiny", 33_000),
        ("gpt", "1m", 1_000_000),
        ("gpt", "10m", 10_700_000),
        ("gpt", "124m", 124_000_000),
        ("gpt", "350m", 354_000_000),
        ("gpt", "1.3b", 1_310_000_000),
        ("llama", "tiny", 115_000),
        ("llama", "10m", 9_500_000),
    ],
)
def test_presets_have_the_size_that_their_name_says(
    name: str, preset: str, parameters: int
) -> None:
    assert count(name, preset) == pytest.approx(parameters, rel=0.03)


def test_every_preset_of_a_transformer_has_a_vocabulary() -> None:
    assert {name: set(presets) for name, presets in VOCABULARIES.items()} == {
        name: set(PRESETS[name]) for name in DECODERS
    }


def count(name: str, preset: str) -> int:
    config = ModelConfig(name=name, preset=preset)  # type: ignore[arg-type]
    model = models.build(config, VOCABULARIES[name][preset])
    assert all(parameter.is_meta for parameter in model.parameters())
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", DECODERS)
def test_a_loss_in_chunks_has_the_value_and_gradients_of_the_whole(name: str) -> None:
    inputs, targets, weights = (
        tokens((3, 17)),
        tokens((3, 17), seed=1),
        torch.tensor([1.0, 1.0, 0.0]),
    )
    whole, chunked = built(name), built(name, loss_chunks=4)
    loss = loss_sum(whole(inputs), targets, weights)
    loss.backward()  # type: ignore[no-untyped-call]
    same = chunked(inputs, targets, weights)
    same.backward()
    torch.testing.assert_close(same, loss, rtol=1e-6, atol=0)
    for parameter, expected in zip(chunked.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_the_operations_of_a_token_are_those_that_a_plan_counts(name: str) -> None:
    config = ModelConfig(name=name, preset="tiny")  # type: ignore[arg-type]
    planned = of_model(config, 256).flops_per_token(64)
    assert models.build(config, 256).flops_per_token(64) == pytest.approx(planned, rel=1e-3)


def test_nobody_counts_the_operations_of_an_image() -> None:
    assert models.build(ModelConfig(name="resnet"), 10).flops_per_token(1) == 0
