"""The config.json of Hugging Face's layout: written for an export, read before weights are taken.
Pure.

Each field is applied, known not to change what is computed, or refused. `docs/tasks/checkpoints.md`
has the table. What a field means and what its absence means is as in transformers' LlamaConfig.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from regroup_trainer.models.llama import NORM_EPSILON, feed_forward_width
from regroup_trainer.protocol.config import Dimensions, ModelConfig, RotaryScaling

Config = Mapping[str, Any]
"""What is in a config.json. Its values may be anything that JSON can say."""

_CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
"""model_type -> the class of transformers that computes what our llama does."""
_SIZES = {
    "hidden_size": "width",
    "intermediate_size": "feedForwardWidth",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "keyValueHeads",
    "tie_word_embeddings": "tiedEmbeddings",
}
"""Field of config.json -> field of `model.dimensions`."""
_ROTARY = {"rope_theta": "rotaryBase", "rope_scaling": "rotaryScaling"}
"""The same, for what stands in different places in different releases of transformers."""
_SCALING = {
    "factor": "factor",
    "low_freq_factor": "lowFrequencyFactor",
    "high_freq_factor": "highFrequencyFactor",
    "original_max_position_embeddings": "originalLength",
}
"""Parameter of the rope_type llama3 -> field of `model.dimensions.rotaryScaling`."""
_NAMES = {ours: theirs for theirs, ours in (_SIZES | _ROTARY | _SCALING).items()}
_REQUIRED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "rms_norm_eps",
)  # fmt: skip
"""Fields whose absence stands for a size of the 7B model, or for another epsilon than ours."""
_REQUIRED_OF_MISTRAL = ("num_key_value_heads", "sliding_window")
_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "rms_norm_eps": (NORM_EPSILON,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "attention_dropout": (0.0,),
    "sliding_window": (None,),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1.0, None),
    "rope_interleaved": (False,),
    "quantization_config": (None,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "auto_map": (None,),
}
"""Field of config.json -> the values with which it computes what our llama does."""
_IRRELEVANT = frozenset(
    {
        # Where the files come from, and how they are stored.
        "_name_or_path", "_commit_hash", "transformers_version", "torch_dtype", "dtype",
        "unsloth_fixed", "unsloth_version", "is_llama_config", "transformers.js_config",
        # Tokens with a role. Samples are not padded, so that no embedding is left out.
        "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "tokenizer_class",
        # Initial values, limits and kernels. The positions of rope_type llama3 know no limit.
        "initializer_range", "max_position_embeddings", "pretraining_tp", "_attn_implementation",
        "_attn_implementation_autoset", "attn_implementation", "gradient_checkpointing",
        "chunk_size_feed_forward", "is_decoder", "max_sequence_length",
        # What a call returns; generation; other heads.
        "use_cache", "output_attentions", "output_hidden_states", "return_dict", "torchscript",
        "temperature", "top_k", "top_p", "do_sample", "max_length", "max_new_tokens",
        "repetition_penalty", "id2label", "label2id", "num_labels", "problem_type",
    }
)  # fmt: skip
"""Fields that do not change what is computed in training."""
_KNOWN = {
    "model_type", "architectures", "vocab_size", "head_dim", "layer_types", "rope_parameters",
    *_SIZES, *_ROTARY, *_ONLY, *_IRRELEVANT,
}  # fmt: skip
_BESIDE_THE_SIZE = frozenset({"model_type", "name"})
"""What stands beside the dimensions in the config.json of a model that transformers lacks."""
_ABSENT_BASE = 10000.0
_LONGEST_SHOWN = 60
_MOST_SHOWN = 8
_WAY_OUT = "name another folder, or correct this file where it is wrong"


def exported_config(
    size: Dimensions, vocabulary: int, sequence_length: int, dtype: str
) -> dict[str, Any]:
    """The config.json of an exported llama; `dtype` as torch names it, such as float32.

    The fields are those of transformers 4, which release 5 reads as well.
    """
    scaling = size.rotary_scaling
    scaled_length = int(scaling.factor * scaling.original_length) if scaling else 0
    given = _explicit(size).model_dump(by_alias=True)
    return {
        "architectures": [_CLASSES["llama"]],
        "model_type": "llama",
        "vocab_size": vocabulary,
        **{theirs: given[ours] for theirs, ours in _SIZES.items()},
        "head_dim": size.width // size.heads,
        "hidden_act": "silu",
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": size.rotary_base,
        "rope_scaling": _exported_scaling(size.rotary_scaling),
        "max_position_embeddings": max(sequence_length, scaled_length),
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": dtype,
    }


def _exported_scaling(scaling: RotaryScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    given = scaling.model_dump(by_alias=True)
    return {"rope_type": "llama3"} | {theirs: given[ours] for theirs, ours in _SCALING.items()}


def own_type(name: str) -> str:
    """The model_type of models that transformers does not have."""
    return f"regroup-{name}"


def problems(config: Config, model: ModelConfig, vocabulary: int) -> list[str]:
    """Why weights with this config.json must not become those of `model`; empty when they may.

    Each names the field of config.json, its value and what to do.
    """
    kind = config.get("model_type")
    kinds = list(_CLASSES) if model.name == "llama" else [own_type(model.name)]
    if kind not in kinds:
        taken = f"model.name {model.name} takes the weights of {' and '.join(kinds)}"
        return [f"model_type is {_shown(kind)}, and {taken}: name another folder"]
    if model.name == "llama":
        return _problems_of_llama(config, str(kind), model, vocabulary)
    size = {field: value for field, value in config.items() if field not in _BESIDE_THE_SIZE}
    try:
        return list(_differences(_dimensions(size, {}), model.size, {}))
    except _UnsupportedError as error:
        return [str(error), _WAY_OUT]


def _problems_of_llama(config: Config, kind: str, model: ModelConfig, vocabulary: int) -> list[str]:
    required = (*_REQUIRED, *(_REQUIRED_OF_MISTRAL if kind == "mistral" else ()))
    missing = [field for field in required if field not in config]
    if missing or config["intermediate_size"] is None:
        what = f"{', '.join(missing)}: missing" if missing else "intermediate_size is null"
        return [f"{what}: copy the config.json of the model again"]
    unsupported = _first(_unsupported(config, _CLASSES[kind]))
    different = list(_other_vocabulary(config["vocab_size"], vocabulary))
    try:
        size = _dimensions(_size_fields(config), _NAMES)
    except _UnsupportedError as error:
        unsupported.append(str(error))
    else:
        unsupported += _other_head_width(config.get("head_dim"), size.width // size.heads)
        different += _differences(_explicit(size), _explicit(model.size), _NAMES)
    return [*unsupported, *([_WAY_OUT] if unsupported else []), *different]


def _unsupported(config: Config, class_name: str) -> Iterator[str]:
    for field, value in config.items():
        if field in _ONLY and not any(_same(value, allowed) for allowed in _ONLY[field]):
            computed = " or ".join(map(_shown, _ONLY[field]))
            yield f"{field} is {_shown(value)}, and a llama here has {computed}"
        elif field not in _KNOWN:
            yield f"{_shown(field)} is not known here, and may change what is computed"
    if config.get("architectures") not in (None, [class_name]):
        yield f"architectures is not {json.dumps([class_name])}"
    layers = config.get("layer_types")
    if layers is not None and (
        not isinstance(layers, list) or any(kind != "full_attention" for kind in layers)
    ):
        yield "layer_types has others than full_attention"


def _other_vocabulary(theirs: Any, ours: int) -> Iterator[str]:
    if not _same(theirs, ours):
        yield (
            f"vocab_size is {_shown(theirs)}, and the vocabulary of the data is {ours}: take data "
            "of the model's tokenizer, and for token files set data.classes"
        )


def _other_head_width(given: Any, ours: int) -> Iterator[str]:
    if given is not None and not _same(given, ours):
        yield f"head_dim is {_shown(given)}, and a llama here has {ours}, width / heads"


def _dimensions(fields: dict[str, Any], names: Mapping[str, str]) -> Dimensions:
    """The size with these fields. Raises _UnsupportedError with what `names` calls them."""
    try:
        return Dimensions.model_validate(fields, strict=True)
    except ValidationError as error:
        raise _UnsupportedError("; ".join(_first(_invalid(error, names)))) from error


def _invalid(error: ValidationError, names: Mapping[str, str]) -> Iterator[str]:
    for found in error.errors(include_url=False, include_context=False):
        path = ".".join(names.get(str(part), str(part)) for part in found["loc"])
        value = "" if found["type"] == "missing" else f" is {_shown(found['input'])}"
        yield f"{_cut(json.dumps(path)[1:-1])}{value}: {found['msg']}" if path else found["msg"]


def _differences(size: Dimensions, own: Dimensions, names: Mapping[str, str]) -> Iterator[str]:
    """How a size in config.json differs from the job's. `names`: our field -> theirs."""
    theirs, ours = size.model_dump(by_alias=True), own.model_dump(by_alias=True)
    different = [field for field in theirs | ours if theirs.get(field) != ours.get(field)]
    for field in different:
        yield (
            f"{names.get(field, field)} is {json.dumps(theirs.get(field))}, and {field} of the job "
            f"is {json.dumps(ours.get(field))}"
        )
    if different:
        yield f"to begin with these weights, set {size.as_field()} and no model.preset"


def _size_fields(config: Config) -> dict[str, Any]:
    """The fields of `model.dimensions`, as config.json gives them. Raises _UnsupportedError."""
    sizes = {ours: config[theirs] for theirs, ours in _SIZES.items() if theirs in config}
    return {"tiedEmbeddings": False} | sizes | _rotary_fields(config)


def _rotary_fields(config: Config) -> dict[str, Any]:
    """transformers 5 has rope_parameters, release 4 rope_theta and rope_scaling."""
    field = "rope_scaling" if config.get("rope_parameters") is None else "rope_parameters"
    if field == "rope_parameters" and config.get("rope_scaling") is not None:
        raise _UnsupportedError("rope_parameters and rope_scaling are both given: keep one of them")
    given = config.get(field)
    if not isinstance(given, dict | None):
        raise _UnsupportedError(f"{field} is {_shown(given)} instead of an object")
    rest = dict(given or {})
    base = _agreed("rope_theta", config.get("rope_theta"), rest.pop("rope_theta", None))
    kind = _agreed(f"{field}.rope_type", rest.pop("rope_type", None), rest.pop("type", None))
    scaled = _same(kind, "llama3")
    if not (scaled or kind is None or _same(kind, "default")):
        raise _UnsupportedError(
            f"{field}.rope_type is {_shown(kind)}, and a llama here has default or llama3"
        )
    if _same(rest.get("partial_rotary_factor"), 1.0):
        del rest["partial_rotary_factor"]
    expected = _SCALING if scaled else {}
    for name in sorted(rest.keys() ^ expected.keys()):
        problem = "missing" if name in expected else f"{_shown(rest[name])}, and not known here"
        raise _UnsupportedError(f"{field}: {_shown(name)} of rope_type {_shown(kind)} is {problem}")
    scaling = {ours: rest[theirs] for theirs, ours in expected.items()} or None
    return {"rotaryBase": _ABSENT_BASE if base is None else base, "rotaryScaling": scaling}


def _agreed(field: str, first: Any, second: Any) -> Any:
    """The value that is not null. Raises _UnsupportedError when there are two."""
    if first is not None and second is not None and not _same(first, second):
        raise _UnsupportedError(
            f"{field} is given twice, as {_shown(first)} and {_shown(second)}: keep one of them"
        )
    return second if first is None else first


def _first(problems: Iterable[str]) -> list[str]:
    """As many as a message can have, and the number of the others."""
    found = list(problems)
    more = len(found) - _MOST_SHOWN
    return found if more <= 0 else [*found[:_MOST_SHOWN], f"and {more} more"]


def _explicit(size: Dimensions) -> Dimensions:
    """The same size with the widths that follow from others."""
    return size.model_copy(
        update={
            "key_value_heads": size.key_value_heads or size.heads,
            "feed_forward_width": feed_forward_width(size),
        }
    )


def _same(value: Any, other: Any) -> bool:
    """Whether two scalars are equal. In Python, True would be 1 as well."""
    if isinstance(value, list | dict) or isinstance(value, bool) != isinstance(other, bool):
        return False
    return bool(value == other)


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return "an object" if isinstance(value, dict) else "a list"
    return _cut(json.dumps(value))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


class _UnsupportedError(Exception):
    """What stands in a config.json is not supported; the message names the field."""
