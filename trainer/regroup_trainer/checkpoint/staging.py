"""A copy in memory of this rank's part of a state, made while training goes on.

Tensors that only the optimizer changes are copied beside the next forward and backward pass; the
optimizer waits for that copy. The few others (buffers, a user's objects) are copied at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from regroup_trainer.checkpoint.image import Image
from regroup_trainer.checkpoint.state_plan import StatePlan
from regroup_trainer.system.background import Background


class Snapshot:
    """Memory for one copy of what `plan` names, used again by each save. A thread prepares it."""

    def __init__(self, plan: StatePlan, device: torch.device, image: Image | None = None) -> None:
        self.plan = plan
        self.image = image or Image(plan.sources.tensors, pinned=device.type == "cuda")
        self._warm = Background(self.image.warm)
        self._copied = threading.Event()
        self._on_device = _DeviceCopy(device) if device.type == "cuda" else None

    @property
    def prepared(self) -> bool:
        """Whether `begin` would not have to wait for the memory."""
        return self._warm.done

    def begin(self) -> dict[str, bytes]:
        """Copy what may change before the next update; returns the objects that are not tensors,
        ready to be stored.
        """
        self._warm.result()
        self._copied.clear()
        _copy(*self._pairs(self.plan.sources.early))
        if self._on_device:
            self._on_device.mark()
        return self.plan.objects()

    def copy(self) -> None:
        """Copy the rest. Call it in another thread."""
        slots, sources = self._pairs(self.plan.sources.late)
        try:
            if self._on_device:
                self._on_device.copy(slots, sources, self._copied)
            else:
                _copy(slots, sources)
        finally:
            self._copied.set()

    def wait(self) -> None:
        """Wait until the optimizer may change the state. On a GPU, the device waits."""
        self._copied.wait()
        if self._on_device:
            self._on_device.wait()

    def _pairs(self, numbers: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
        tensors = self.plan.sources.tensors
        return [self.image.slots[i] for i in numbers], [tensors[i] for i in numbers]


class _DeviceCopy:
    """Copies from a GPU on a stream of its own, so that neither training nor host waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def mark(self) -> None:
        """Order the copy after all that training has queued on the device so far."""
        self._ready.record(torch.cuda.current_stream(self._device))

    def copy(
        self, slots: Sequence[Tensor], sources: Sequence[Tensor], issued: threading.Event
    ) -> None:
        """Copy; returns when it is done. Sets `issued` as soon as the copy is queued."""
        with torch.no_grad(), torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(self._ready)
            for slot, source in zip(slots, sources, strict=True):
                slot.copy_(source, non_blocking=True)
            self._done.record(self._stream)
        issued.set()
        self._done.synchronize()

    def wait(self) -> None:
        """Make the training's stream wait for the copy."""
        torch.cuda.current_stream(self._device).wait_event(self._done)


@torch.no_grad()
def _copy(slots: list[Tensor], sources: list[Tensor]) -> None:
    """Copy in one call, which releases the interpreter's lock."""
    if slots:
        torch._foreach_copy_(slots, sources)
