"""Model FLOPs utilization: the peaks of devices, and the share of them that a training reaches."""

from __future__ import annotations

import pytest

from regroup_trainer.step.model_flops import peak_flops, utilization


@pytest.mark.parametrize(
    ("device", "precision", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "bf16", 835),
        ("NVIDIA H200", "bf16", 989),
        ("NVIDIA A100-SXM4-40GB", "bf16", 312),
        ("NVIDIA A100 80GB PCIe", "fp32", 19.5),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40S", "bf16", 362),
        ("NVIDIA A10", "bf16", 125),
        ("Tesla V100-SXM2-32GB", "fp32", 15.7),
        ("NVIDIA B200", "bf16", 2250),
        ("AMD Instinct MI300X", "bf16", 1307),
    ],
)
def test_a_known_device_has_the_dense_peak_of_its_data_sheet(
    device: str, precision: str, teraflops: float
) -> None:
    assert peak_flops(device, precision, {}) == teraflops * 1e12


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        ("", "fp32"),
        ("NVIDIA A10G", "bf16"),
        ("NVIDIA L40", "bf16"),
        ("NVIDIA GeForce RTX 4090", "bf16"),
        ("Tesla V100-SXM2-32GB", "bf16"),
    ],
)
def test_a_device_that_is_not_in_the_table_has_no_peak(device: str, precision: str) -> None:
    assert peak_flops(device, precision, {}) is None


def test_a_variable_gives_the_peak_of_any_device() -> None:
    given = {"REGROUP_PEAK_TFLOPS": "70"}
    assert peak_flops("NVIDIA A10G", "bf16", given) == 70e12
    assert peak_flops("NVIDIA H100 80GB HBM3", "bf16", given) == 70e12


@pytest.mark.parametrize("given", ["", "many", "0", "-1", "nan", "inf"])
def test_a_variable_that_is_no_number_above_zero_counts_as_absent(given: str) -> None:
    assert peak_flops("NVIDIA H200", "bf16", {"REGROUP_PEAK_TFLOPS": given}) == 989e12


def test_the_utilization_is_that_of_all_devices() -> None:
    # torchtitan, Llama 3.1 8B on 8 H100 with sequences of 8192: 5,762 tokens/s on each.
    rate = utilization(8 * 5762, 5.8e10, 8, 989e12)
    assert rate == pytest.approx(0.338, abs=0.001)


def test_nothing_known_is_no_utilization() -> None:
    assert utilization(1000.0, 0.0, 8, 989e12) is None
    assert utilization(1000.0, 5e10, 8, None) is None
    assert utilization(0.0, 5e10, 8, 989e12) is None
