"""A training of bench/gpu.py, the same for all subjects, and what its figures mean."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from regroup_trainer.protocol.config import Dimensions, ModelConfig

PEAK_FLOPS = {
    "B200": 2250e12,
    "GH200": 989.4e12,
    "H200": 989.4e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989.4e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165.2e12,
}
"""Part of a device's name -> dense bf16 FLOPs per second, by NVIDIA's data sheets. The first that
fits counts.
"""


def peak_flops(device_name: str) -> float | None:
    """Peak FLOPs per second of a device; None if the table lacks it, as for a CPU."""
    return next((peak for part, peak in PEAK_FLOPS.items() if part in device_name), None)


@dataclass(frozen=True)
class Job:
    """What to train, in bf16 with fp32 weights, AdamW and clipping, on one device."""

    model: str
    preset: str
    classes: int
    length: int
    """Tokens of a sequence (T)."""
    micro_batch: int
    """Sequences of a forward pass; each optimizer step takes `accumulation` of them."""
    accumulation: int
    steps: int
    warm: int
    """Steps before the clock starts: the compiler, the allocator."""
    compile: bool
    save_every: int = 0
    """Steps between saves, 0: none."""
    resume: bool = False
    """Whether to go on from what an earlier run saved in the same folder."""

    @property
    def config(self) -> ModelConfig:
        """The model configuration; all subjects train our model."""
        return ModelConfig.model_validate({"name": self.model, "preset": self.preset})

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a global batch."""
        return self.micro_batch * self.accumulation * self.length

    def as_dict(self) -> dict[str, Any]:
        """The fields, to pass to another process."""
        return asdict(self)


def flops_per_token(parameters: int, size: Dimensions, length: int) -> float:
    """FLOPs per token, forward and backward: 6N + 12LHQT (PaLM, Chowdhery 2022, appendix B).

    N `parameters` take part in products (those of a lookup do not), L layers, H heads of Q
    channels, T tokens.
    """
    return 6.0 * parameters + 12.0 * size.layers * size.width * length
