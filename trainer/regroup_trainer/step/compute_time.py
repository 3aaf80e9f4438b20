"""Measures how long a rank itself computes in a step, without the time that it waits for others.

A collective ends on all ranks at the same time, so the time of a step hides which rank was late. A
rank's own time is measured where it waits for no collective. That is from the begin of a forward
pass to the end of the backward computation, which is before DistributedDataParallel waits for its
reductions. With FSDP2 every layer waits for its parameters; there the forward passes of the
innermost sharded modules are measured, which begin when their parameters are gathered. With model
parallelism ranks wait within the layers, and nothing is measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

EVERY_SECONDS = 0.02
"""Least time between two measured steps: measuring takes twenty microseconds."""
Mark = float | torch.cuda.Event
"""A point in time: on the host, or in the stream of a GPU, which runs behind the host."""


class ComputeTime:
    """The compute time of one rank's passes through `model`."""

    def __init__(self, model: nn.Module, device: torch.device, measured: bool = True) -> None:
        self._on_gpu = device.type == "cuda"
        self._began: Mark | None = None
        self._spans: list[tuple[Mark, Mark]] = []
        self._measures = measured
        """Whether the present step is measured."""
        self._taken_at = -math.inf
        self.computed: Mark | None = None
        """When this rank's own part of a measured step ended; None too where it waits for others
        within it.
        """
        units = list(_innermost_sharded(model)) if measured else []
        self._whole_passes = measured and not units
        for unit in units:
            unit.register_forward_pre_hook(self._enter)
            unit.register_forward_hook(self._leave, prepend=True)

    def begin(self) -> None:
        """Note that a forward pass begins."""
        if self._whole_passes and self._measures:
            self._began = self.now()

    def until_computed(self, loss: Tensor) -> None:
        """Note that the pass ends with the backward computation from `loss`, which is to follow."""
        if self._began is not None and loss.requires_grad:
            loss.register_hook(self._await_end)  # type: ignore[no-untyped-call]

    def take(self) -> float:
        """The seconds of the step that has ended; 0 where it was not measured, or the GPU has not
        come so far. Call it after each step.
        """
        total = 0.0
        if all(is_over(end) for _, end in self._spans):
            total = sum(seconds_between(*span) for span in self._spans)
            self._spans.clear()
        now, self.computed = time.perf_counter(), None
        self._measures = not self._spans and now - self._taken_at >= EVERY_SECONDS
        if self._measures:
            self._taken_at = now
        return total

    def _await_end(self, _gradient: Tensor) -> None:
        """Queue the end at the begin of the backward pass: callbacks are called in order, so it
        comes before DDP's own wait.
        """
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._end)

    def _end(self) -> None:
        if self._began is not None:
            end = self.now()
            self._spans.append((self._began, end))
            self._began = None
            self.computed = end if self._whole_passes else None

    def _enter(self, _module: nn.Module, _inputs: Any) -> None:
        self._began = self.now() if self._measures and torch.is_grad_enabled() else None

    def _leave(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        self._end()

    def now(self) -> Mark:
        """This point in the work of the rank."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _innermost_sharded(model: nn.Module) -> Iterator[nn.Module]:
    for module in model.modules():
        if isinstance(module, FSDPModule) and not any(_sharded_below(module)):
            yield module


def _sharded_below(module: nn.Module) -> Iterator[bool]:
    return (isinstance(below, FSDPModule) for below in module.modules() if below is not module)


def is_over(mark: Mark) -> bool:
    """Whether the GPU has come so far."""
    return isinstance(mark, float) or bool(mark.query())  # type: ignore[no-untyped-call]


def seconds_between(begin: Mark, end: Mark) -> float:
    """Seconds from one mark to another; both are over."""
    if isinstance(begin, float) or isinstance(end, float):
        return float(end) - float(begin)  # type: ignore[arg-type]
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1000
