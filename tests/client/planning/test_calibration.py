"""Measured speeds in place of expected ones."""

from __future__ import annotations

import pytest

from regroup.planning.calibration import calibrated
from regroup.planning.hardware import GPUS, Cluster, cluster
from regroup_trainer.protocol.calibration import Calibration, ComputeRates, LinkRates

LINKS = LinkRates(all_reduce=200e9, all_gather=150e9, hop_seconds=8e-6)


def measured(device: str = "NVIDIA A100-SXM4-80GB", links: LinkRates | None = LINKS) -> Calibration:
    rates = {
        "bf16": ComputeRates(products=250e12, block=156e12),
        "fp32": ComputeRates(products=18e12, block=15.6e12),
    }
    return Calibration.model_validate(
        {"device": device, "ranks": 8, "rates": rates, "links": links}
    )


def machines(gpu: str = "a100-80", precision: str = "bf16") -> Cluster:
    return cluster(GPUS[gpu].at_precision(precision), 2)


@pytest.mark.parametrize(("precision", "share"), [("bf16", 0.5), ("fp32", 0.8)])
def test_a_measured_block_gives_the_share_of_the_peak_in_its_precision(
    precision: str, share: float
) -> None:
    found = calibrated(machines(precision=precision), measured()).efficiency.compute
    assert found.value == pytest.approx(share)
    assert found.origin == "measured"
    assert "its matrix products alone: " in found.source


def test_the_slower_collective_counts_and_the_network_stays_assumed() -> None:
    found = calibrated(machines(), measured()).efficiency
    assert found.local.value == pytest.approx(0.5)
    assert found.local_hop == 8e-6
    assert found.network == machines().efficiency.network


def test_one_device_measures_no_links() -> None:
    found = calibrated(machines(), measured(links=None)).efficiency
    assert found.local == machines().efficiency.local


@pytest.mark.parametrize(
    ("gpu", "device", "sentence"),
    [
        ("a100-80", "NVIDIA H200", "has NVIDIA H200, and the plan is for a100-80: give --gpu h200"),
        ("h200-141", "NVIDIA H100 80GB HBM3", "give --gpu h100-80 or h100-96"),
        ("a100-80", "cpu", "give --gpu cpu"),
        ("a100-80", "Radeon", "no --gpu describes it"),
    ],
)
def test_the_speeds_of_another_device_are_refused(gpu: str, device: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="this machine has") as raised:
        calibrated(machines(gpu), measured(device))
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("gpu", "device"),
    [("v100-32", "Tesla V100-SXM2-32GB"), ("b200", "NVIDIA B200"), ("cpu", "cpu")],
)
def test_drivers_names_are_known(gpu: str, device: str) -> None:
    assert calibrated(machines(gpu, "fp32"), measured(device)).gpu.name == gpu
