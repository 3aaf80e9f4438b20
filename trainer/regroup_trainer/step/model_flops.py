"""Model FLOPs utilization (MFU; PaLM, 2022, appendix B): the floating-point operations of forward
and backward that the model needs for the tokens of a second, over the peak of the devices. What is
computed again, as by activation checkpointing, does not count. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from regroup_trainer.protocol.environment import PEAK_TFLOPS

TERA = 1e12


class _Peak(NamedTuple):
    """A device's peak in teraflops: dense, a multiply-and-add counts as two."""

    device: re.Pattern[str]
    """Found in the name that PyTorch gives the device. The first that is found counts."""
    bf16: float | None
    """None where the device has no bf16."""
    fp32: float
    """Without TF32, as PyTorch multiplies matrices by default."""


_PEAKS = tuple(
    _Peak(re.compile(device), bf16, fp32)
    for device, bf16, fp32 in (
        (r"\bB200\b", 2250.0, 75.0),  # NVIDIA DGX B200 data sheet (2024), divided by 8
        (r"\bH200 NVL\b", 835.0, 60.0),  # NVIDIA H200 data sheet (2024)
        (r"\bH200\b", 989.0, 67.0),
        (r"\bH100 PCIe\b", 756.0, 51.0),  # NVIDIA H100 data sheets (2022, 2023)
        (r"\bH100 NVL\b", 835.0, 60.0),
        (r"\bH100\b", 989.0, 67.0),
        (r"\bA100\b", 312.0, 19.5),  # NVIDIA A100 data sheet (2022)
        (r"\bL40S\b", 362.0, 91.6),  # NVIDIA L40S data sheet (2023)
        (r"\bL4\b", 121.0, 30.3),  # NVIDIA L4 data sheet (2023)
        (r"\bA10\b", 125.0, 31.2),  # NVIDIA A10 data sheet (2021)
        (r"\bV100-SXM2\b", None, 15.7),  # NVIDIA V100 data sheet (2020)
        (r"\bV100-PCIE\b", None, 14.0),
        (r"\bMI300X\b", 1307.0, 163.4),  # AMD Instinct MI300X data sheet (2023)
    )
)


def peak_flops(device: str, precision: str, environment: Mapping[str, str]) -> float | None:
    """Operations per second of one device, by its name as PyTorch has it, in `bf16` or `fp32`; what
    the environment gives comes first. None where nobody knows it, as of a CPU.
    """
    if given := _positive(environment.get(PEAK_TFLOPS, "")):
        return given * TERA
    found = next((peak for peak in _PEAKS if peak.device.search(device)), None)
    if found is None:
        return None
    teraflops = found.bf16 if precision == "bf16" else found.fp32
    return teraflops * TERA if teraflops is not None else None


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def utilization(
    tokens_per_second: float, flops_per_token: float, devices: int, peak: float | None
) -> float | None:
    """The share of the peak of all devices; None where one of the numbers is not known (0)."""
    if peak is None or not tokens_per_second or not flops_per_token:
        return None
    return tokens_per_second * flops_per_token / (devices * peak)
