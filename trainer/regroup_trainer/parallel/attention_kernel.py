"""Which kernel computes the attention: chosen once at the start, and reported."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.config import TrainConfig

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
"""These switches hold for CPUs too, in spite of their names."""


def choose_attention(config: TrainConfig, device: torch.device) -> str:
    """Let this process use only the configured kernel, or any; returns the name of the one that is
    used.

    It is "" for a model without attention. Raises ConfigurationError when the kernel does not
    support model and device.
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
            f"model.attention: {wanted!r} cannot serve heads of {size.width // size.heads} "
            "channels in "
            f"{config.training.precision} on {device.type}: use 'auto', or another of "
            f"{', '.join(BACKENDS)}"
        )
    return found


def serving(config: TrainConfig, device: torch.device) -> str | None:
    """The kernel that torch chooses, of those allowed, for the shape and type of a micro-batch;
    None if there is none.
    """
    size, training = config.model.size, config.training
    dtype = torch.bfloat16 if training.precision == "bf16" else torch.float32
    head_width, length = size.width // size.heads, training.sequence_length
    query = torch.empty(
        1, size.heads, length, head_width, dtype=dtype, device=device, requires_grad=True
    )
    shared_heads = size.key_value_heads or size.heads
    key = torch.empty(
        1, shared_heads, length, head_width, dtype=dtype, device=device, requires_grad=True
    )
    # torch has no public function for this choice, which its own attention makes first.
    try:
        choice = torch._fused_sdp_choice(
            query, key, key, is_causal=True, enable_gqa=shared_heads != size.heads
        )
    except RuntimeError:  # no kernel is possible
        return None
    return next((name for name, backend in BACKENDS.items() if backend.value == choice), None)
