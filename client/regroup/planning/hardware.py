"""The machines: a table of accelerators with their speeds, and a cluster of them.

The share of these speeds that a training reaches is in `efficiency`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from regroup.planning.efficiency import Efficiency, expected
from regroup_trainer.protocol.calibration import Precision

GIGA = 10**9
MOST_DEVICES = 2**20
"""The bound of `trainer.training.globalBatchSize`: more would have nothing to do."""


@dataclass(frozen=True)
class Gpu:
    """One accelerator, as its data sheet describes it."""

    name: str
    memory: int
    """Bytes, with 1 GB = 10^9: a little less than the device has."""
    bf16_flops: float | None
    """Dense. A multiply-and-add counts as two. None where the device has no bf16."""
    fp32_flops: float
    memory_bandwidth: float
    local_bandwidth: float
    """In one direction, to the other devices of its machine (NVLink, else PCIe)."""
    network_gigabits: float
    """Per machine, in one direction, in the usual machine of this device."""
    gpus_per_node: int
    """In that machine."""

    @property
    def flops(self) -> float:
        """Operations per second in the precision that it trains in."""
        return self.bf16_flops or self.fp32_flops

    @property
    def element_bytes(self) -> int:
        """Bytes of a number in the precision that it trains in."""
        return 2 if self.bf16_flops else 4

    def at_precision(self, precision: str) -> Gpu:
        """The same device, training in `fp32` or, where it has it, in `bf16`."""
        return replace(self, bf16_flops=None) if precision == "fp32" else self

    @property
    def precision(self) -> Precision:
        """The precision that it trains in, as in `trainer.training.precision`."""
        return "bf16" if self.bf16_flops else "fp32"

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU, which needs no memory for a context and collective buffers."""
        return self.name == "cpu"


def _gpu(
    name: str,
    memory: float,
    teraflops: tuple[float | None, float],
    bandwidths: tuple[float, float],
    machine: tuple[float, int],
) -> Gpu:
    """Gigabytes; bf16 and fp32 teraflops; memory and local gigabytes per second; network gigabits
    and devices.
    """
    bf16, fp32 = teraflops
    return Gpu(
        name=name,
        memory=int(memory * GIGA),
        bf16_flops=bf16 * 1e12 if bf16 else None,
        fp32_flops=fp32 * 1e12,
        memory_bandwidth=bandwidths[0] * GIGA,
        local_bandwidth=bandwidths[1] * GIGA,
        network_gigabits=machine[0],
        gpus_per_node=machine[1],
    )


GPUS = {
    gpu.name: gpu
    for gpu in (
        # NVIDIA V100 SXM2 data sheet (2020); DGX-1: 4 x 100 Gb/s. Its tensor cores know fp16, but
        # not bf16.
        _gpu("v100-32", 32, (None, 15.7), (900, 150), (400, 8)),
        # NVIDIA A100 data sheet (2022), SXM4; DGX A100: 8 x 200 Gb/s.
        _gpu("a100-40", 40, (312, 19.5), (1555, 300), (1600, 8)),
        _gpu("a100-80", 80, (312, 19.5), (2039, 300), (1600, 8)),
        # NVIDIA L40S data sheet (2023): no NVLink, PCIe 4.0 x16; machines usually have 2 x 200
        # Gb/s.
        _gpu("l40s", 48, (362, 91.6), (864, 32), (400, 8)),
        # NVIDIA H100 data sheet (2023), SXM5, dense figures; DGX H100: 8 x 400 Gb/s.
        _gpu("h100-80", 80, (989, 67), (3350, 450), (3200, 8)),
        # torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: the H100 of Meta's Grand Teton
        # machines, with HBM2e and 500 W instead of 700 W. Its peak is unknown and lies below the
        # 989 TFLOPS of the data sheet.
        _gpu("h100-96", 96, (989, 67), (2400, 450), (3200, 8)),
        # NVIDIA H200 data sheet (2024), SXM; DGX H200: 8 x 400 Gb/s.
        _gpu("h200-141", 141, (989, 67), (4800, 450), (3200, 8)),
        # NVIDIA DGX B200 data sheet (2024): 1440 GB, 64 TB/s and 36 PFLOPS dense bf16 halves over
        # 8; 8 x 400 Gb/s.
        _gpu("b200", 180, (2250, 75), (8000, 900), (3200, 8)),
        # Orders of magnitude for one rank of a few cores with AVX2 and its share of a server;
        # loopback or 10 Gb/s.
        _gpu("cpu", 16, (None, 0.2), (20, 2), (10, 1)),
    )
}
"""Value of `--gpu` -> device."""


@dataclass(frozen=True)
class Cluster:
    """Equal machines of equal devices."""

    gpu: Gpu
    nodes: int
    gpus_per_node: int
    network_bandwidth: float
    """Bytes per second of a machine, in one direction."""
    efficiency: Efficiency
    """The share of these speeds that a training reaches."""

    @property
    def devices(self) -> int:
        """Devices of all machines, each with one rank."""
        return self.nodes * self.gpus_per_node


def cluster(
    gpu: Gpu, nodes: int, gpus_per_node: int | None = None, network_gigabits: float | None = None
) -> Cluster:
    """A cluster. What is not given is as in the usual machine of the device.

    Raises ValueError for more devices than a batch may have samples.
    """
    gigabits = network_gigabits or gpu.network_gigabits
    per_node = gpus_per_node or gpu.gpus_per_node
    if nodes * per_node > MOST_DEVICES:
        raise ValueError(
            f"{nodes} machines with {per_node} devices each: a plan is for at most {MOST_DEVICES} "
            "devices in all: give fewer"
        )
    return Cluster(
        gpu,
        nodes,
        per_node,
        gigabits * GIGA / 8,
        expected(gpu.name, gpu.precision),
    )
