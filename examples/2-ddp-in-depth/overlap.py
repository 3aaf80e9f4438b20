"""Accumulation with no_sync, and buckets that travel while the backward pass still runs: counted,
timed and drawn.

    python overlap.py --picture overlap.png

Two ranks; the network between them is emulated at `--megabytes-per-second` on top of what it really
needs, since the memory of one machine is faster than any network, and hides what this is about.

Without `from __future__ import annotations`: DDP looks at its hook's annotations, and refuses them
as strings.
"""

import argparse
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
WIDTH, LAYERS, BATCH = 1024, 24, 96
MEGABYTE = 2**20
MICRO_STEPS = 100
REPEATS = 3


@dataclass
class Trace:
    """Who was busy when, in seconds since `start`."""

    start: float = 0.0
    spans: list[tuple[str, float, float]] = field(default_factory=list)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Note what happens inside."""
        begin = time.perf_counter()
        yield
        self.spans.append((name, begin - self.start, time.perf_counter() - self.start))


class SlowNetwork:
    """All-reduces buckets one after the other in a thread of its own, as a network card would."""

    def __init__(self, bytes_per_second: float, trace: Trace) -> None:
        self.reductions = 0
        self._rate, self._trace = bytes_per_second, trace
        self._waiting: queue.Queue[tuple[Tensor, torch.futures.Future[Tensor]] | None] = (
            queue.Queue()
        )
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def hook(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """DDP's communication hook: called when a bucket is complete, in the middle of the backward
        pass.
        """
        self.reductions += 1
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._waiting.put((bucket.buffer(), future))
        return future

    def close(self) -> None:
        """End the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _carry(self) -> None:
        while (item := self._waiting.get()) is not None:
            buffer, future = item
            with self._trace.span("network"):
                time.sleep(buffer.numel() * buffer.element_size() / self._rate)
                dist.all_reduce(buffer)
            future.set_result(buffer.div_(RANKS))


def build(bucket_megabytes: float, network: SlowNetwork) -> DistributedDataParallel:
    """A stack of layers of 4 MB each behind DDP."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    ddp = DistributedDataParallel(
        model, bucket_cap_mb=bucket_megabytes, gradient_as_bucket_view=True
    )
    ddp.register_comm_hook(None, network.hook)
    return ddp


def backward(model: nn.Module, trace: Trace) -> float:
    """Seconds of one forward and backward pass, until all gradients are reduced."""
    loss = model(torch.full((BATCH, WIDTH), 0.1)).square().mean()
    dist.barrier()
    trace.start, trace.spans[:] = time.perf_counter(), []
    with trace.span("backward and waiting"):
        loss.backward()
    model.zero_grad(set_to_none=False)
    return time.perf_counter() - trace.start


def overlap(rate: float) -> dict[str, list[tuple[str, float, float]]]:
    """Time the backward pass with buckets of several sizes; returns what was busy when."""
    pictures = {}
    for name, megabytes in (
        ("buckets of 25 MB", 25.0),
        ("one bucket", 10_000.0),
        ("a bucket per layer", 1.0),
    ):
        trace = Trace()
        network = SlowNetwork(rate, trace)
        model = build(megabytes, network)
        backward(model, trace)  # the first pass only finds out in which order gradients are ready
        seconds = []
        for _ in range(REPEATS):
            seconds.append(backward(model, trace))
            if seconds[-1] == min(seconds):
                pictures[name] = list(trace.spans)
        count = sum(kind == "network" for kind, _, _ in pictures[name])
        busy = sum(end - begin for kind, begin, end in pictures[name] if kind == "network")
        print_once(
            f"{name:20} {count:3} all-reduces, network busy {1000 * busy:5.0f} ms, step "
            f"{1000 * min(seconds):5.0f} ms"
        )
        network.close()
    compute = compute_alone()
    print_once(
        f"{'no communication':20}   0 all-reduces, network busy     0 ms, step "
        f"{1000 * compute:5.0f} ms"
    )
    return pictures


def compute_alone() -> float:
    """Seconds of a backward pass that communicates nothing."""
    trace = Trace()
    network = SlowNetwork(1e12, trace)
    model = build(25.0, network)
    with model.no_sync():
        seconds = min(backward(model, trace) for _ in range(REPEATS))
    network.close()
    return seconds


def accumulation(rate: float) -> None:
    """100 micro-steps: every one reduces, or only the last one does. The gradients are the same."""
    results = {}
    for name, quiet in (("reducing each time", False), ("with no_sync", True)):
        network = SlowNetwork(rate, Trace())
        model = build_small(network)
        begin = time.perf_counter()
        for step in range(MICRO_STEPS):
            last = step == MICRO_STEPS - 1
            with model.no_sync() if quiet and not last else nullcontext():
                torch.manual_seed(step * RANKS + dist.get_rank())
                (model(torch.randn(4, 64)).square().mean() / MICRO_STEPS).backward()
        seconds = time.perf_counter() - begin
        results[name] = torch.cat(
            [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        )
        print_once(
            f"{MICRO_STEPS} micro-steps {name:20} {network.reductions:4} all-reduces, "
            f"{1000 * seconds:6.0f} ms"
        )
        network.close()
    first, second = results.values()
    print_once(
        "largest difference of the two gradients: "
        f"{float((first - second).abs().max() / first.abs().max()):.1e}"
    )


def build_small(network: SlowNetwork) -> DistributedDataParallel:
    """A model whose gradients are one bucket."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, network.hook)
    return ddp


def draw(pictures: dict[str, list[tuple[str, float, float]]], file: str) -> None:
    """One pair of bars per bucket size: the backward pass above, the network below."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(pictures), 1, figsize=(8, 4.2), sharex=True, layout="constrained"
    )
    for axis, (name, spans) in zip(axes, pictures.items(), strict=True):
        for kind, begin, end in spans:
            row, colour = (0, "tab:orange") if kind == "network" else (1, "tab:blue")
            axis.barh(
                row,
                1000 * (end - begin),
                left=1000 * begin,
                color=colour,
                edgecolor="white",
                height=0.7,
            )
        axis.set_yticks([0, 1], ["network", "backward"])
        axis.set_title(name, fontsize=10, loc="left")
    axes[-1].set_xlabel("milliseconds since the backward pass began")
    figure.savefig(file, dpi=80)


def print_once(line: str) -> None:
    """Print on rank 0."""
    if dist.get_rank() == 0:
        print(line, flush=True)


def run(rank: int, folder: str, megabytes_per_second: float, picture: str | None) -> None:
    """One rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    rate = megabytes_per_second * MEGABYTE
    sections: list[Callable[[], Any]] = [lambda: accumulation(rate), lambda: overlap(rate)]
    *_, pictures = [section() for section in sections]
    if picture and rank == 0:
        draw(pictures, picture)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--megabytes-per-second", type=float, default=200.0, help="of the emulated network"
    )
    parser.add_argument("--picture", help="PNG file to draw the trace into; needs matplotlib")
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with TemporaryDirectory() as folder:
        arguments = (folder, options.megabytes_per_second, options.picture)
        mp.start_processes(run, arguments, nprocs=RANKS, start_method="fork")


if __name__ == "__main__":
    main()
