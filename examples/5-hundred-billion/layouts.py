"""Layers placed by hand on the devices of a machine, replicated over machines; its idle time shown,
and then removed.

    python layouts.py --picture layouts.png

Two "machines" of four "devices" each: a rank is a device. A device here computes by sleeping for as
long as its share of the work takes (`--milliseconds` per layer and sample, twice that backwards),
so that eight of them fit on any processor; tensors, gradients and everything that is sent are real,
and all layouts find the same loss.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

MACHINES, DEVICES, LAYERS, WIDTH = 2, 4, 8, 64
SAMPLES, MICRO_BATCHES = 32, 8
SPANS: list[tuple[float, float]] = []
"""When this device computed."""


class Compute(torch.autograd.Function):
    """Does nothing to the tensor, and keeps the device busy meanwhile: `seconds` forwards, twice
    that backwards.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        """Forward."""
        ctx.seconds = seconds
        _busy(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Two products for each one of the forward pass."""
        _busy(2 * ctx.seconds)
        return gradients[0], None


def _busy(seconds: float) -> None:
    begin = time.perf_counter()
    time.sleep(seconds)
    SPANS.append((begin, time.perf_counter()))


class Layer(nn.Module):
    """Two matrices with a residual connection."""

    def __init__(self, milliseconds: float, share: float = 1.0) -> None:
        super().__init__()
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.seconds = milliseconds / 1000 * share

    def forward(self, x: Tensor) -> Tensor:
        """[B, C] -> [B, C]."""
        wide = torch.tanh(self.widen(x))
        widened = Compute.apply(wide, self.seconds * len(x))  # type: ignore[no-untyped-call]
        result: Tensor = x + 0.1 * self.narrow(widened)
        return result


@dataclass(frozen=True)
class Setting:
    """What all layouts share."""

    mesh: DeviceMesh
    """[machine, device]"""
    milliseconds: float

    @property
    def machine(self) -> int:
        """Which machine this rank is on."""
        return int(self.mesh.get_local_rank("machine"))

    @property
    def device(self) -> int:
        """Which device of it this rank is: LOCAL_RANK."""
        return int(self.mesh.get_local_rank("device"))

    def layers(self, share: float = 1.0) -> nn.Sequential:
        """The whole model, equal everywhere."""
        torch.manual_seed(0)
        return nn.Sequential(*(Layer(self.milliseconds, share) for _ in range(LAYERS)))

    def own_layers(self) -> nn.Sequential:
        """Those that are placed on this device."""
        each = LAYERS // DEVICES
        return self.layers()[self.device * each : (self.device + 1) * each]

    def batch(self, part: int, parts: int) -> tuple[Tensor, Tensor]:
        """One of `parts` equal parts of the global batch."""
        generator = torch.Generator().manual_seed(1)
        inputs, targets = torch.randn(2, SAMPLES, WIDTH, generator=generator)
        return inputs.chunk(parts)[part], targets.chunk(parts)[part]


def loss_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    """Summed, not averaged: sums over parts add up to that of the whole batch, however it is
    cut.
    """
    return (outputs - targets).square().sum()


def sum_over_machines(setting: Setting, model: nn.Module) -> None:
    """What DDP does: equal layers of different machines add their gradients."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=setting.mesh.get_group("machine"))


def by_hand(setting: Setting) -> Callable[[], Tensor]:
    """Naive model parallelism: the batch goes through the devices one after the other, and back.
    One of them works.
    """
    model, last = setting.own_layers(), DEVICES - 1
    inputs, targets = setting.batch(setting.machine, MACHINES)
    ranks = dist.get_process_group_ranks(setting.mesh.get_group("device"))

    def step() -> Tensor:
        model.zero_grad()
        x = inputs
        if setting.device > 0:
            x = torch.empty_like(inputs)
            dist.recv(x, ranks[setting.device - 1])
            x.requires_grad_()
        y = model(x)
        loss = torch.zeros(())
        if setting.device < last:
            dist.send(y.detach(), ranks[setting.device + 1])
            gradient = torch.empty_like(y)
            dist.recv(gradient, ranks[setting.device + 1])
            y.backward(gradient)
        else:
            loss = loss_sum(y, targets)
            loss.backward()
        if setting.device > 0:
            dist.send(x.grad, ranks[setting.device - 1])
        sum_over_machines(setting, model)
        return loss.detach()

    return step


def pipeline(setting: Setting) -> Callable[[], Tensor]:
    """The same placement, but eight micro-batches under way: one forward, one backward (1F1B)."""
    model, group = setting.own_layers(), setting.mesh.get_group("device")
    inputs, targets = setting.batch(setting.machine, MACHINES)
    stage = PipelineStage(model, setting.device, DEVICES, torch.device("cpu"), group=group)
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_sum, scale_grads=False)

    def step() -> Tensor:
        model.zero_grad()
        losses: list[Tensor] = []
        arguments = (inputs,) if setting.device == 0 else ()
        extra = {"target": targets, "losses": losses} if setting.device == DEVICES - 1 else {}
        schedule.step(*arguments, **extra)
        sum_over_machines(setting, model)
        return torch.stack(losses).sum().detach() if losses else torch.zeros(())

    return step


def tensor(setting: Setting) -> Callable[[], Tensor]:
    """Every device has a quarter of every matrix, and all work on the same samples; a sum after
    each layer.
    """
    plan = {"widen": ColwiseParallel(), "narrow": RowwiseParallel()}
    model = setting.layers(share=1 / DEVICES)
    for layer in model:
        parallelize_module(layer, setting.mesh["device"], plan)
    inputs, targets = setting.batch(setting.machine, MACHINES)

    def step() -> Tensor:
        model.zero_grad()
        loss = loss_sum(model(inputs), targets)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad.to_local(), group=setting.mesh.get_group("machine"))
        return loss.detach() if setting.device == 0 else torch.zeros(())

    return step


def sharded(setting: Setting) -> Callable[[], Tensor]:
    """Every device has a quarter of the parameters and samples of its own; layers are gathered when
    needed.
    """
    model = setting.layers()
    for module in (*model, model):
        fully_shard(module, mesh=setting.mesh)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    inputs, targets = setting.batch(dist.get_rank(), MACHINES * DEVICES)

    def step() -> Tensor:
        model.zero_grad()
        loss = loss_sum(model(inputs), targets)
        loss.backward()
        return loss.detach()

    return step


LAYOUTS = {
    "by hand + DDP": by_hand,
    "pipeline + DDP": pipeline,
    "tensor + DDP": tensor,
    "sharded (HSDP)": sharded,
}


def measure(
    setting: Setting, build: Callable[[Setting], Callable[[], Tensor]]
) -> tuple[float, float, list[Any]]:
    """Loss, seconds of a step, and when each rank was busy in it."""
    step = build(setting)
    step()  # the first one sets buffers and connections up
    dist.barrier()
    SPANS.clear()
    start = time.perf_counter()
    loss = step()
    dist.barrier()
    seconds = time.perf_counter() - start
    dist.all_reduce(loss)
    spans: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(spans, [(begin - start, end - start) for begin, end in SPANS])
    return float(loss) / SAMPLES, seconds, spans


def draw(results: dict[str, tuple[float, float, list[Any]]], file: str) -> None:
    """When the devices of the first machine computed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(results), 1, figsize=(8, 5.2), sharex=True, layout="constrained"
    )
    for axis, (name, (_, _, spans)) in zip(axes, results.items(), strict=True):
        for device in range(DEVICES):
            bars = [(1000 * begin, 1000 * (end - begin)) for begin, end in spans[device]]
            axis.broken_barh(
                bars, (device - 0.4, 0.8), color="tab:blue", edgecolor="white", linewidth=0.3
            )
        axis.set_yticks(
            range(DEVICES), [f"device {device}" for device in range(DEVICES)], fontsize=7
        )
        axis.invert_yaxis()
        axis.set_title(name, fontsize=10, loc="left")
    axes[-1].set_xlabel("milliseconds since the step began")
    figure.savefig(file, dpi=80)


def run(rank: int, folder: str, milliseconds: float, picture: str | None) -> None:
    """One device."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=MACHINES * DEVICES
    )
    setting = Setting(
        init_device_mesh("cpu", (MACHINES, DEVICES), mesh_dim_names=("machine", "device")),
        milliseconds,
    )
    results = {name: measure(setting, build) for name, build in LAYOUTS.items()}
    if rank == 0:
        print(f"{'layout':16}{'loss':>9}{'step ms':>9}   busy share of each device of machine 0")
        for name, (loss, seconds, spans) in results.items():
            shares = [
                sum(end - begin for begin, end in spans[device]) / seconds
                for device in range(DEVICES)
            ]
            print(
                f"{name:16}{loss:9.5f}{1000 * seconds:9.0f}   "
                f"{'  '.join(f'{share:4.0%}' for share in shares)}"
            )
        if picture:
            draw(results, picture)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Start the devices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--milliseconds", type=float, default=4.0, help="of a device, per layer and sample"
    )
    parser.add_argument("--picture", help="PNG file to draw the busy times into; needs matplotlib")
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with TemporaryDirectory() as folder:
        arguments = (folder, options.milliseconds, options.picture)
        mp.start_processes(run, arguments, nprocs=MACHINES * DEVICES, start_method="fork")


if __name__ == "__main__":
    main()
