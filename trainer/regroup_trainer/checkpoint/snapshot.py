"""A copy in memory of this rank's part of a state, taken while training goes on.

Tensors that only the optimizer changes are copied beside the next forward and backward pass, and the optimizer waits
for that; the few others (buffers, what a user adds) at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from regroup_trainer.checkpoint.background import Background
from regroup_trainer.checkpoint.image import Image
from regroup_trainer.checkpoint.plan import StatePlan


class Snapshot:
    """Memory for one copy of what `plan` names, used again by each save. A thread makes it ready."""

    def __init__(self, plan: StatePlan, device: torch.device, image: Image | None = None) -> None:
        self.plan = plan
        self.image = image or Image(plan.sources, pinned=device.type == "cuda")
        self._warm = Background(self.image.warm)
        self._copied = threading.Event()
        self._on_device = _DeviceCopy(device) if device.type == "cuda" else None

    def begin(self) -> dict[str, bytes]:
        """Copy what may change before the next update; returns the objects that are not tensors, ready to be stored."""
        self._warm.result()
        self._copied.clear()
        _copy(*self._pairs(self.plan.early))
        if self._on_device:
            self._on_device.mark()
        return self.plan.objects()

    def copy(self) -> None:
        """Copy the rest, in another thread than the training's."""
        slots, sources = self._pairs(self.plan.late)
        try:
            if self._on_device:
                self._on_device.copy(slots, sources, self._copied)
            else:
                _copy(slots, sources)
        finally:
            self._copied.set()

    def wait(self) -> None:
        """Return when the optimizer may change the state; on a GPU it is the device that waits."""
        self._copied.wait()
        if self._on_device:
            self._on_device.wait()

    def _pairs(self, numbers: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
        return [self.image.slots[i] for i in numbers], [self.plan.sources[i] for i in numbers]


class _DeviceCopy:
    """Copies from a GPU on a stream of its own, so that neither it nor the host waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def mark(self) -> None:
        """What the training has given to the device so far comes before the copy."""
        self._ready.record(torch.cuda.current_stream(self._device))

    def copy(self, slots: Sequence[Tensor], sources: Sequence[Tensor], issued: threading.Event) -> None:
        """Copy; `issued` is set when the device knows of it, return when it is done."""
        with torch.no_grad(), torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(self._ready)
            for slot, source in zip(slots, sources, strict=True):
                slot.copy_(source, non_blocking=True)
            self._done.record(self._stream)
        issued.set()
        self._done.synchronize()

    def wait(self) -> None:
        """The training's stream waits for the copy; the host does not."""
        torch.cuda.current_stream(self._device).wait_event(self._done)


@torch.no_grad()
def _copy(slots: list[Tensor], sources: list[Tensor]) -> None:
    """In one call, which does not hold the interpreter's lock."""
    if slots:
        torch._foreach_copy_(slots, sources)
