"""Rotary positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regroup_trainer.models.rotary import rotary_angles, rotate, scaled
from regroup_trainer.protocol.config import PRESETS, Dimensions, RotaryScaling

CPU = torch.device("cpu")


def size(head_width: int, **fields: Any) -> Dimensions:
    return Dimensions(layers=1, heads=1, width=head_width, **fields)


def test_rotation_makes_scores_depend_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(8, generator=generator), torch.randn(8, generator=generator)
    cosine, sine = rotary_angles(32, size(8), CPU)
    queries = rotate(query.expand(1, 1, 32, 8), cosine, sine)[0, 0]
    keys = rotate(key.expand(1, 1, 32, 8), cosine, sine)[0, 0]
    assert queries[7] @ keys[3] == pytest.approx(float(queries[24] @ keys[20]), rel=1e-4)
    assert queries.norm(dim=-1) == pytest.approx(query.norm().expand(32), rel=1e-5)


def test_a_larger_base_turns_more_slowly() -> None:
    fast, slow = (rotary_angles(8, size(16, rotary_base=base), CPU)[1][1] for base in (1e4, 5e5))
    assert torch.all(slow[1:] < fast[1:])
    assert fast[0] == slow[0]


@pytest.mark.parametrize("preset", ["1b", "3b"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scaled_frequencies_are_those_of_transformers(preset: str) -> None:
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    dimensions = PRESETS["llama"][preset]
    head_width = dimensions.width // dimensions.heads
    rotary = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = transformers.LlamaConfig(
        hidden_size=dimensions.width,
        num_attention_heads=dimensions.heads,
        rope_parameters=rotary,
    )
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, CPU)
    assert dimensions.rotary_scaling
    unscaled = 5e5 ** (-torch.arange(0, head_width, 2) / head_width)
    frequencies = scaled(unscaled, dimensions.rotary_scaling)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    cosine, _ = rotary_angles(2, dimensions, CPU)
    torch.testing.assert_close(cosine[1], expected.cos())
    if preset == "1b":
        assert int((frequencies != unscaled).sum()) == 17  # of 32


def test_scaling_leaves_short_wavelengths_and_stretches_long_ones() -> None:
    scaling = RotaryScaling(
        factor=8, low_frequency_factor=1, high_frequency_factor=4, original_length=64
    )
    turns = torch.tensor([100.0, 4.0, 2.5, 1.0, 0.1])  # in the original context
    kept = scaled(turns * 2 * torch.pi / 64, scaling) / (turns * 2 * torch.pi / 64)
    assert kept.tolist() == pytest.approx([1, 1, 0.5 + 0.5 / 8, 1 / 8, 1 / 8])


def test_the_two_bounds_of_a_scaling_must_differ() -> None:
    with pytest.raises(ValueError, match=r"lowFrequencyFactor 4\.0 must be below highFrequency"):
        RotaryScaling(factor=2, low_frequency_factor=4)
