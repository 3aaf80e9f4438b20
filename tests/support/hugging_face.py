"""Folders in Hugging Face's layout: of transformers' own models, and of ours with any fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from regroup_trainer.models.hugging_face_config import exported_config
from regroup_trainer.models.llama import hugging_face_name
from regroup_trainer.protocol.config import ModelConfig
from tests.support.models import built

VOCABULARY = 64
DIMENSIONS: dict[str, Any] = {
    "layers": 2,
    "heads": 4,
    "width": 32,
    "keyValueHeads": 2,
    "feedForwardWidth": 48,
}
SCALED: dict[str, Any] = {
    **DIMENSIONS,
    "rotaryBase": 5e5,
    "rotaryScaling": {"factor": 32, "originalLength": 64},
}
"""In the proportions of Llama 3.2, with a short context."""
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""The same as DIMENSIONS, as transformers calls them."""
ROTARY = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
"""The scaling of SCALED, as transformers 5 writes it."""


def llama(folder: Path | None = None, dimensions: dict[str, Any] = DIMENSIONS) -> ModelConfig:
    """A configuration that begins with the weights in `folder`."""
    given = str(folder) if folder else None
    return ModelConfig.model_validate(
        {"name": "llama", "dimensions": dimensions, "initializeFrom": given}
    )


def theirs(folder: Path, kind: str, vocabulary: int = VOCABULARY, **config: Any) -> Any:
    """A random model of transformers, saved in `folder`; `kind`: Llama, Mistral, Qwen2, GPT2."""
    import transformers

    torch.manual_seed(3)
    settings = {"vocab_size": vocabulary, "bos_token_id": None, "eos_token_id": None, **config}
    classes: Any = transformers.AutoModelForCausalLM
    model = classes.from_config(getattr(transformers, f"{kind}Config")(**settings)).eval()
    for parameter in model.parameters():  # norms and biases too
        torch.nn.init.normal_(parameter, 0.1 if parameter.dim() > 1 else 1.0, 0.3)
    model.save_pretrained(folder)
    return model


def weights(vocabulary: int = VOCABULARY) -> dict[str, Tensor]:
    """Random weights of a llama of DIMENSIONS."""
    model = built("llama", None, classes=vocabulary, dimensions=llama().size)
    return {hugging_face_name(name): tensor for name, tensor in model.state_dict().items()}


def config_file(**changes: Any) -> dict[str, Any]:
    """The config.json of a llama of DIMENSIONS with other values."""
    return exported_config(llama().size, VOCABULARY, 128, "float32") | changes


def write(folder: Path, tensors: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    """A folder with one file of weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_file(**changes)))
    save_file(weights() if tensors is None else tensors, folder / "model.safetensors")
    return folder


def write_split(folder: Path, files: dict[str, dict[str, Tensor]], **places: Any) -> Path:
    """A folder with several files and an index, in which `places` stand besides."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_file()))
    for name, tensors in files.items():
        save_file(tensors, folder / name)
    index = {weight: name for name, tensors in files.items() for weight in tensors} | places
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder
