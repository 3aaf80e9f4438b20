"""A copy in memory of this rank's part of a state, taken while training goes on.

What to write was agreed by all ranks once, with DCP's planner; after that a copy needs no communication. Tensors that
only the optimizer changes are copied beside the next forward and backward pass, and the optimizer waits for that; the
few others (buffers, what a user adds) at once.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from regroup_trainer.agreement import deal, gather
from regroup_trainer.checkpoint.background import Background
from regroup_trainer.checkpoint.description import Description, Places, tensor_file
from regroup_trainer.checkpoint.image import Image
from regroup_trainer.checkpoint.storage import hyperparameters, packed_extra, tensors_of, updated_tensors
from regroup_trainer.state import TrainState


class Snapshot:
    """Memory for one copy of `state`, used again by each save. All ranks make it together."""

    def __init__(self, state: TrainState, device: torch.device) -> None:
        self._state = state
        self._planner = _planner(tensors_of(state))
        local = self._planner.create_local_plan()
        self._wanted = local.items
        plan, metadata = deal(local, self._share_out)
        self._planner.finish_plan(plan)
        self._tensor_items = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
        self._object_items = [item for item in plan.items if item.type == WriteItemType.BYTE_IO]
        self._pickled: dict[str, tuple[Any, bytes]] = {}
        self._resolve()
        self.image = Image(self._sources, pinned=device.type == "cuda")
        self._warm = Background(self.image.warm)
        places = gather(self._places())
        self._objects()  # the first save finds them pickled
        self.description = Description(metadata, places) if metadata and places else None
        """On rank 0."""
        self._copied = threading.Event()
        self._on_device = _DeviceCopy(device) if device.type == "cuda" else None

    def fits(self) -> bool:
        """Whether the state still consists of the tensors that were planned for. All ranks find the same."""
        if self._addresses == _addresses(updated_tensors(self._state)):
            return True
        self._planner = _planner(tensors_of(self._state))
        fits = bool(self._planner.create_local_plan().items == self._wanted)
        if fits:
            self._resolve()
        return fits

    def begin(self) -> dict[str, bytes]:
        """Copy what may change before the next update; returns the objects that are not tensors, ready to be stored."""
        self._warm.result()
        self._copied.clear()
        _copy([self.image.slots[i] for i in self._early], [self._sources[i] for i in self._early])
        if self._on_device:
            self._on_device.mark()
        return self._objects()

    def copy(self) -> None:
        """Copy the rest, in another thread than the training's."""
        slots, sources = [self.image.slots[i] for i in self._late], [self._sources[i] for i in self._late]
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

    def _share_out(self, plans: list[SavePlan]) -> list[tuple[SavePlan, Metadata | None]]:
        shared, metadata = self._planner.create_global_plan(plans)
        return [(plan, None if rank else metadata) for rank, plan in enumerate(shared)]

    def _places(self) -> Places:
        file = tensor_file(dist.get_rank())
        items = zip(self._tensor_items, self.image.spans, strict=True)
        return {item.index: _StorageInfo(file, span.offset, span.length) for item, span in items}

    def _resolve(self) -> None:
        updated = updated_tensors(self._state)
        self._addresses = _addresses(updated)
        self._sources = [cast(Tensor, self._planner.resolve_data(item)) for item in self._tensor_items]
        storages = {tensor.untyped_storage().data_ptr() for tensor in updated}
        late = [source.untyped_storage().data_ptr() in storages for source in self._sources]
        self._late = [number for number, is_late in enumerate(late) if is_late]
        self._early = [number for number, is_late in enumerate(late) if not is_late]

    def _objects(self) -> dict[str, bytes]:
        groups = {"param_groups": hyperparameters(self._state)}
        now, _ = flatten_state_dict({"optimizer": groups, "extra": packed_extra(self._state)})
        self._planner.state_dict.update({key: now[key] for key in now if key in self._planner.state_dict})
        return {item.index.fqn: self._pickle(item) for item in self._object_items}

    def _pickle(self, item: WriteItem) -> bytes:
        """As DCP stores objects; most are the same in every save."""
        value, name = self._planner.lookup_object(item.index), item.index.fqn
        if name not in self._pickled or not _same(self._pickled[name][0], value):
            stream = io.BytesIO()
            torch.save(value, stream)
            self._pickled[name] = (value, stream.getvalue())
        return self._pickled[name][1]


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


def _planner(tensors: dict[str, Any]) -> DefaultSavePlanner:
    planner = DefaultSavePlanner()
    planner.set_up_planner(tensors, is_coordinator=dist.get_rank() == 0)
    return planner


@torch.no_grad()
def _copy(slots: list[Tensor], sources: list[Tensor]) -> None:
    """In one call, which does not hold the interpreter's lock."""
    if slots:
        torch._foreach_copy_(slots, sources)


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _same(a: object, b: object) -> bool:
    """Equal plain values; anything else is pickled anew."""
    plain = (bool, int, float, str, type(None))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and isinstance(a, plain) and a == b
