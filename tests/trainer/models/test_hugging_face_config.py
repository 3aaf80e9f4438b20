"""Which config.json describes a model of ours."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.models.hugging_face_config import exported_config, own_type, problems
from regroup_trainer.protocol.config import PRESETS, ModelConfig
from tests.support.hugging_face import DIMENSIONS, SCALED, VOCABULARY, config_file, llama

LLAMA_3_2 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
"""The fields of Llama 3.2 1B."""
WIDER = {"head_dim": 128, "hidden_size": 3072, "num_attention_heads": 24, "num_hidden_layers": 28}
"""Those of 3B that differ."""
SCALING: dict[str, Any] = LLAMA_3_2["rope_scaling"]  # type: ignore[assignment]


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in config_file().items() if name not in names}


def found(**changes: Any) -> str:
    return "; ".join(problems(config_file(**changes), llama(), VOCABULARY))


@pytest.mark.parametrize(("preset", "config"), [("1b", {}), ("3b", WIDER)])
def test_the_presets_are_the_released_models(preset: str, config: dict[str, Any]) -> None:
    model = ModelConfig(name="llama", preset=preset)
    assert problems(LLAMA_3_2 | config, model, 128256) == []


def test_a_released_model_without_scaling_is_refused_with_the_dimensions_to_set() -> None:
    unscaled = LLAMA_3_2 | {"rope_scaling": None}
    (scaling, way_out) = problems(unscaled, ModelConfig(name="llama", preset="1b"), 128256)
    assert scaling.startswith("rope_scaling is null, and rotaryScaling of the job is {")
    model = ModelConfig.model_validate({"name": "llama", **given_field(way_out)})
    assert problems(unscaled, model, 128256) == []


def given_field(message: str) -> dict[str, Any]:
    """What a message asks to set, in `model`."""
    field = re.search(r"set model\.(dimensions: \{.*\}) and no model\.preset", message)
    assert field, message
    parsed: dict[str, Any] = yaml.safe_load(field[1])
    return parsed


@pytest.mark.parametrize("dimensions", [DIMENSIONS, SCALED, {**SCALED, "tiedEmbeddings": False}])
def test_an_exported_config_describes_the_model(dimensions: dict[str, Any]) -> None:
    config = exported_config(llama(None, dimensions).size, 77, 16, "float32")
    assert problems(json.loads(json.dumps(config)), llama(None, dimensions), 77) == []


def test_positions_of_transformers_5_are_read() -> None:
    config = {name: it for name, it in LLAMA_3_2.items() if not name.startswith("rope")}
    config["rope_parameters"] = {**SCALING, "rope_theta": 5e5}
    assert problems(config, ModelConfig(name="llama", preset="1b"), 128256) == []
    other = problems(config | {"rope_theta": 1e4}, ModelConfig(name="llama", preset="1b"), 128256)
    assert other[0] == "rope_theta is given twice, as 10000.0 and 500000.0: keep one of them"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64, "head_dim": 16}, "hidden_size is 64, and width of the job is 32"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, and layers of the job is 2"),
        ({"num_key_value_heads": None}, "num_key_value_heads is 4, and keyValueHeads of the job"),
        ({"vocab_size": 65}, "vocab_size is 65, and the vocabulary of the data is 64"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is false, and tiedEmbeddings"),
        ({"rope_theta": 5e5}, "rope_theta is 500000.0, and rotaryBase of the job is 10000.0"),
        ({"head_dim": 16}, "head_dim is 16, and a llama here has 8"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps is 1e-06"),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"'),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"sliding_window": 4096}, "sliding_window is 4096"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is an object"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "auto_map is an object"),
        ({"architectures": ["LlamaModel"]}, 'architectures is not ["LlamaForCausalLM"]'),
        ({"layer_types": ["sliding_attention"]}, "layer_types has others"),
        ({"logits_scaling": 8}, '"logits_scaling" is not known here'),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 'rope_type is "dynamic"'),
        (
            {"rope_scaling": {**SCALING, "mscale": 1}},
            '"mscale" of rope_type "llama3" is 1, and',
        ),
        ({"rope_scaling": {"rope_type": "llama3"}}, 'of rope_type "llama3" is missing'),
        ({"rope_scaling": {**SCALING, "type": "linear"}}, 'twice, as "llama3" and "linear"'),
        ({"rope_scaling": {**SCALING, "factor": "32"}}, 'rope_scaling.factor is "32": Input'),
        ({"rope_scaling": SCALING, "rope_parameters": SCALING}, "both given"),
        ({"rope_scaling": 7}, "rope_scaling is 7 instead of an object"),
        ({"hidden_size": "32"}, 'hidden_size is "32": Input should be a valid integer'),
        ({"hidden_size": 10**30}, "hidden_size is 1000000000000000000000000000000: Input"),
        ({"num_attention_heads": 5}, "width 32 must be a multiple of 2 x heads (5)"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1: Input should be a valid boolean"),
        ({"model_type": "qwen2"}, 'model_type is "qwen2", and model.name llama takes'),
        ({"model_type": ["llama"]}, "model_type is a list"),
    ],
)
def test_what_is_not_computed_here_is_refused_by_its_name(
    changes: dict[str, Any], message: str
) -> None:
    assert message in found(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_act": "swish"},
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_scaling": {}, "head_dim": None, "quantization_config": None},
        {"layer_types": ["full_attention", "full_attention"], "use_sliding_window": False},
        {"model_type": "mistral", "architectures": None, "sliding_window": None},
        {"bos_token_id": 7, "torch_dtype": "bfloat16", "id2label": {"0": "a"}, "use_cache": False},
    ],
)
def test_what_does_not_change_the_computation_is_taken(changes: dict[str, Any]) -> None:
    assert found(**changes) == ""


@pytest.mark.parametrize("missing", ["rms_norm_eps", "vocab_size", "intermediate_size"])
def test_a_field_whose_absence_means_another_size_is_needed(missing: str) -> None:
    (message,) = problems(without(missing), llama(), VOCABULARY)
    assert message.startswith(f"{missing}: missing")


def test_a_width_of_null_is_no_width() -> None:
    (message,) = problems(config_file(intermediate_size=None), llama(), VOCABULARY)
    assert message.startswith("intermediate_size is null: copy")


def test_an_absent_field_means_what_it_means_in_transformers() -> None:
    absent = without("tie_word_embeddings", "rope_theta", "rope_scaling", "num_key_value_heads")
    all_heads = {**DIMENSIONS, "tiedEmbeddings": False, "keyValueHeads": 4}
    assert problems(absent, llama(None, all_heads), VOCABULARY) == []
    assert problems({**absent, "model_type": "mistral"}, llama(None, all_heads), VOCABULARY) == [
        "num_key_value_heads, sliding_window: missing: copy the config.json of the model again"
    ]


def test_a_model_that_transformers_lacks_is_compared_by_our_names() -> None:
    model = ModelConfig(name="gpt", preset="tiny")
    size = PRESETS["gpt"]["tiny"].model_dump()
    config = {"model_type": own_type("gpt"), "name": "gpt", **size}
    assert problems(config, model, 256) == []
    wider = problems({**config, "width": 64}, model, 256)
    assert wider[0] == "width is 64, and width of the job is 32"
    assert given_field(wider[1])["dimensions"]["width"] == 64
    assert problems({**config, "\x1b[31m": 1}, model, 256)[0].isprintable()
    assert problems({**config, "bias": True}, model, 256) == [
        "bias is true: Extra inputs are not permitted",
        "name another folder, or correct this file where it is wrong",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=200),
    lambda it: st.lists(it, max_size=3) | st.dictionaries(st.text(max_size=99), it, max_size=3),
    max_leaves=6,
)


@given(field=st.sampled_from(sorted(LLAMA_3_2)) | st.text(max_size=200), value=JSON)
def test_any_value_gives_an_answer_of_readable_length(field: str, value: Any) -> None:
    model = ModelConfig(name="llama", preset="1b")
    answers = problems({**LLAMA_3_2, field: value}, model, 128256)
    assert all(len(answer) < 500 for answer in answers), answers


@given(parameter=st.sampled_from(sorted(SCALING)) | st.text(max_size=99), value=JSON)
def test_any_scaling_gives_an_answer(parameter: str, value: Any) -> None:
    config = {**LLAMA_3_2, "rope_scaling": {**SCALING, parameter: value}}
    answers = problems(config, ModelConfig(name="llama", preset="1b"), 128256)
    unchanged = parameter in SCALING and not isinstance(value, bool) and value == SCALING[parameter]
    if not unchanged and not (value is None and parameter in ("type", "rope_theta")):
        assert answers, (parameter, value)


def test_a_long_list_of_problems_is_cut() -> None:
    answers = problems(config_file(**{f"x{n}": n for n in range(1000)}), llama(), VOCABULARY)
    assert len(answers) == 10
    assert answers[8:] == [
        "and 992 more",
        "name another folder, or correct this file where it is wrong",
    ]


def test_values_that_are_deeply_nested_or_long_are_not_shown() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for field in (*LLAMA_3_2, "layer_types", "rope_parameters", "unknown"):
        assert len(found(**{field: deep})) < 1000, field
    assert len(found(hidden_act="x" * 10**6, **{"y" * 10**6: 1})) < 1000
