"""The share of a machine's speeds that a training reaches: published, measured here, or assumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regroup_trainer.protocol.calibration import Precision

Origin = Literal["published", "measured", "assumed"]


@dataclass(frozen=True)
class Share:
    """A part of a nominal speed."""

    value: float
    """Between 0 and 1, unless the nominal speed is too low."""
    origin: Origin
    source: str
    """Where the value comes from, in words."""


@dataclass(frozen=True)
class Efficiency:
    """What is reached in computing and on links."""

    compute: Share
    """Of the peak operations per second: in the forward and backward pass of a whole model, with
    all that is no matrix product.
    """
    local: Share
    """Of the bandwidth between the devices of a machine."""
    network: Share
    """Of the bandwidth between machines."""
    local_hop: float
    """Seconds of latency of one step of a ring within a machine."""
    network_hop: float
    """The same between machines."""


FOUNDRY = "llm-foundry"
"""MosaicML's llm-foundry, scripts/train/benchmarking/README.md (2025-07): MPT models with FSDP.

The values are medians of its hardware FLOPs utilisation over the rows of a device with at least
10^9 parameters, sequences of 2048 to 8192 tokens and up to 128 devices. The rows spread from 0.45
to 0.77 on A100s and from 0.38 to 0.59 on H100s.
"""
_COMPUTE: dict[tuple[str, Precision], Share] = {
    ("a100-40", "bf16"): Share(0.59, "published", f"{FOUNDRY}, A100 40 GB"),
    ("a100-80", "bf16"): Share(0.64, "published", f"{FOUNDRY}, A100 80 GB"),
    ("h100-80", "bf16"): Share(0.42, "published", f"{FOUNDRY}, H100 80 GB"),
    ("h100-96", "bf16"): Share(0.42, "assumed", "as the H100 80 GB"),
    ("h200-141", "bf16"): Share(0.42, "assumed", "as the H100 80 GB, the same chip"),
    ("b200", "bf16"): Share(0.42, "assumed", "as the H100 80 GB"),
    ("l40s", "bf16"): Share(0.42, "assumed", "as the H100 80 GB"),
}
_UNKNOWN = Share(0.55, "assumed", "nothing published for this device and precision")
_LINKS = Share(0.8, "published", "nccl-tests: 230 to 240 of 300 GB/s on A100 NVLink")
_OTHER_LINKS = Share(0.8, "assumed", "as NVLink of the A100")
_HOP = 5e-6


def expected(gpu: str, precision: Precision) -> Efficiency:
    """What is known without measuring, of a device of the table of hardware in `bf16` or `fp32`."""
    compute = _COMPUTE.get((gpu, precision), _UNKNOWN)
    links = _LINKS if gpu.startswith("a100-") else _OTHER_LINKS
    return Efficiency(compute, links, _OTHER_LINKS, _HOP, _HOP)
