"""The model: causal, translation-aware, initialised by seed and name."""

from __future__ import annotations

import pytest
import torch

from regroup_trainer.config import PRESETS
from regroup_trainer.initialize import initialize
from regroup_trainer.models.gpt import GPT, rotary_angles, rotate

TINY = PRESETS["gpt"]["tiny"]


def built(seed: int = 0) -> GPT:
    with torch.device("meta"):
        model = GPT(TINY)
    model.to_empty(device="cpu")
    initialize(model, model, seed)
    return model


def test_a_prediction_depends_on_no_later_byte() -> None:
    model = built()
    tokens = torch.randint(0, 256, (1, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 9:] = 0
    assert torch.equal(model(tokens)[0, :9], model(changed)[0, :9])
    assert not torch.equal(model(tokens)[0, 9], model(changed)[0, 9])


def test_rotation_makes_scores_depend_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(8, generator=generator), torch.randn(8, generator=generator)
    cosine, sine = rotary_angles(32, 8, torch.device("cpu"))
    queries = rotate(query.expand(1, 1, 32, 8), cosine, sine)[0, 0]
    keys = rotate(key.expand(1, 1, 32, 8), cosine, sine)[0, 0]
    assert queries[7] @ keys[3] == pytest.approx(float(queries[24] @ keys[20]), rel=1e-4)
    assert queries.norm(dim=-1) == pytest.approx(query.norm().expand(32), rel=1e-5)


def test_weights_are_a_function_of_the_seed() -> None:
    first, again, other = (built(seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


def test_blocks_do_not_start_alike() -> None:
    blocks = built().blocks
    weights = [dict(block.named_parameters())["widen.weight"] for block in blocks]
    assert not torch.equal(weights[0], weights[1])


def test_input_and_output_share_their_embedding() -> None:
    names = [name for name, parameter in built().named_parameters() if 256 in parameter.shape]
    assert names == ["embedding.weight"]


@pytest.mark.parametrize(("preset", "parameters"), [("tiny", 33_000), ("1m", 1_000_000), ("10m", 10_700_000)])
def test_presets_have_the_size_that_their_name_says(preset: str, parameters: int) -> None:
    with torch.device("meta"):
        model = GPT(PRESETS["gpt"][preset])
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(parameters, rel=0.03)
