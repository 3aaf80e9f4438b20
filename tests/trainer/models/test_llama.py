"""Llama: what its names are in Hugging Face's layout, and that it computes the same."""

from __future__ import annotations

import pytest
import torch

from regroup_trainer.models.llama import NORM_EPSILON, feed_forward_width, hugging_face_name
from tests.support.models import built, tokens


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_computes_what_hugging_faces_llama_does_with_the_same_weights() -> None:
    import transformers

    size = {
        "layers": 2,
        "heads": 4,
        "width": 32,
        "key_value_heads": 2,
        "tied_embeddings": False,
        "rotary_base": 5e5,
    }
    ours = built("llama", None, classes=101, dimensions=size)
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=101,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=feed_forward_width(ours.size),
            rope_parameters={"rope_type": "default", "rope_theta": 5e5},
            rms_norm_eps=NORM_EPSILON,
            tie_word_embeddings=False,
        )
    )
    theirs.load_state_dict(
        {hugging_face_name(name): weight for name, weight in ours.state_dict().items()}
    )
    text = tokens((2, 19), below=101)
    with torch.no_grad():
        torch.testing.assert_close(ours(text), theirs(text).logits, rtol=1e-4, atol=1e-5)


def test_heads_that_share_keys_need_fewer_weights() -> None:
    weights = built("llama").state_dict()
    assert weights["blocks.0.attention.query.weight"].shape == (64, 64)
    assert weights["blocks.0.attention.key.weight"].shape == (32, 64)


def test_a_parameter_of_another_model_has_no_name_in_their_layout() -> None:
    with pytest.raises(KeyError):
        hugging_face_name("blocks.0.attention.project_in.weight")
