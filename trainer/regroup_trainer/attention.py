"""Which kernel computes the attention: chosen once, at the start, and told."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend

from regroup_trainer.config import TrainConfig
from regroup_trainer.errors import ConfigurationError

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
"""model.attention -> torch's name."""

_SWITCHES = {
    "flash": torch.backends.cuda.enable_flash_sdp,
    "efficient": torch.backends.cuda.enable_mem_efficient_sdp,
    "cudnn": torch.backends.cuda.enable_cudnn_sdp,
    "math": torch.backends.cuda.enable_math_sdp,
}
"""They hold for CPUs too, whatever their name."""


def choose_attention(config: TrainConfig, device: torch.device) -> str:
    """Let this process use only the kernel that the configuration names, or all; returns the one that will serve.

    "" for a model without attention. Raises ConfigurationError when the kernel cannot serve model and device.
    """
    if config.model.name == "resnet":
        return ""
    wanted = config.model.attention
    for name, switch in _SWITCHES.items():
        switch(wanted in ("auto", name))
    found = serving(config, device)
    if found is None or wanted not in ("auto", found):
        size = config.model.size
        raise ConfigurationError(
            f"model.attention: {wanted!r} cannot serve heads of {size.width // size.heads} channels in "
            f"{config.training.precision} on {device.type}: use 'auto', or another of {', '.join(BACKENDS)}"
        )
    return found


def serving(config: TrainConfig, device: torch.device) -> str | None:
    """The kernel that torch takes among those allowed for the shape and type of a micro-batch, None without any."""
    size, training = config.model.size, config.training
    dtype = torch.bfloat16 if training.precision == "bf16" else torch.float32
    head_width, length = size.width // size.heads, training.sequence_length
    query = torch.empty(1, size.heads, length, head_width, dtype=dtype, device=device, requires_grad=True)
    shared_heads = size.key_value_heads or size.heads
    key = torch.empty(1, shared_heads, length, head_width, dtype=dtype, device=device, requires_grad=True)
    # torch has no public name for the question that its own attention asks first.
    try:
        choice = torch._fused_sdp_choice(query, key, key, is_causal=True, enable_gqa=shared_heads != size.heads)
    except RuntimeError:  # none of them
        return None
    return next((name for name, backend in BACKENDS.items() if backend.value == choice), None)
