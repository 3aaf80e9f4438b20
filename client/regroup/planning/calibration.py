"""Puts the measured speeds of a machine into a cluster. Pure: `cli.calibrate` measures."""

from __future__ import annotations

from dataclasses import replace

from regroup.planning.efficiency import Efficiency, Share
from regroup.planning.hardware import GPUS, Cluster
from regroup_trainer.protocol.calibration import Calibration, LinkRates


def calibrated(cluster: Cluster, measured: Calibration) -> Cluster:
    """The cluster, with what was measured in place of what was expected.

    Raises ValueError when the measured device is not the cluster's.
    """
    gpu = cluster.gpu
    require_device(gpu.name, measured.device)
    rates = measured.rates[gpu.precision]
    products = f"its matrix products alone: {rates.products / gpu.flops:.0%}"
    compute = Share(rates.block / gpu.flops, "measured", f"a block of this model; {products}")
    efficiency = replace(cluster.efficiency, compute=compute)
    if measured.links:
        efficiency = _with_links(efficiency, measured.links, gpu.local_bandwidth)
    return replace(cluster, efficiency=efficiency)


def require_device(planned: str, device: str) -> None:
    """Raises ValueError when `device`, as a driver names it, is not the planned one."""
    if _is_same(planned, device):
        return
    known = [name for name in GPUS if _is_same(name, device)]
    instead = f"give --gpu {' or '.join(known)}" if known else "no --gpu describes it"
    raise ValueError(
        f"this machine has {device}, and the plan is for {planned}: {instead}, or measure on a "
        "machine of the plan"
    )


def _with_links(efficiency: Efficiency, links: LinkRates, bandwidth: float) -> Efficiency:
    slower = min(links.all_reduce, links.all_gather) / bandwidth
    local = Share(slower, "measured", "collectives over local ranks")
    return replace(efficiency, local=local, local_hop=links.hop_seconds)


def _is_same(name: str, device: str) -> bool:
    """Whether a device of the table may be this one: `a100-80` and `NVIDIA A100-SXM4-80GB`."""
    chip = name.partition("-")[0].upper()
    return chip in device.upper().replace("-", " ").split()
