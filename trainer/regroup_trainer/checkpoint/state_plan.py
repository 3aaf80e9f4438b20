"""What each rank stores of a state. All ranks agree on it once, with DCP's planner; a copy then
needs no communication.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from regroup_trainer.checkpoint.description import Description, Owners, Places, tensor_file
from regroup_trainer.checkpoint.image import lay_out
from regroup_trainer.checkpoint.storage import (
    hyperparameters,
    packed_extra,
    tensors_of,
    updated_tensors,
)
from regroup_trainer.step.agreement import gather, scatter
from regroup_trainer.step.plain_values import require_plain
from regroup_trainer.step.state import TrainState

T = TypeVar("T")


@dataclass(frozen=True)
class Sources:
    """The tensors that a plan stores, where they are in memory at present."""

    tensors: list[Tensor]
    late: list[int]
    """Indices of those that only the optimizer changes."""
    early: list[int]
    """Indices of the others."""
    updated: list[int]
    """Addresses of all tensors that the optimizer changes."""


class StatePlan:
    """The tensors and objects of `state` that this rank stores.

    If `together`, all ranks make the plan, and each tensor that several ranks hold is stored by one
    of them. Otherwise this rank stores all that it has.
    """

    def __init__(self, state: TrainState, together: bool = True) -> None:
        self._state = state
        self._planner = _planner(tensors_of(state))
        local = self._planner.create_local_plan()
        self._wanted = local.items
        plan, metadata, self.replicated = (
            scatter(local, self._deduplicate) if together else self._deduplicate([local])[0]
        )
        """Whether every rank has the whole state."""
        self._planner.finish_plan(plan)
        self._tensor_items = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
        self._object_items = [item for item in plan.items if item.type == WriteItemType.BYTE_IO]
        self._pickled: dict[str, tuple[Any, bytes]] = {}
        self.sources = self._resolve()
        self.spans = lay_out(self.sources.tensors)
        """The places of the tensors in the rank's file."""
        rank, collect = (dist.get_rank(), gather) if together else (0, _only)
        places, owners = collect(self._places(rank)), collect(self._owned(rank))
        self.objects()  # so that the first copy finds them pickled
        self.description = (
            Description(metadata, places, owners) if metadata and places and owners else None
        )
        """On rank 0, and on a rank that plans alone; None elsewhere."""

    def fits(self) -> bool:
        """Whether the state still consists of the tensors that were planned for; the same on all
        ranks.
        """
        if self.sources.updated == _addresses(updated_tensors(self._state)):
            return True
        self._planner = _planner(tensors_of(self._state))
        fits = bool(self._planner.create_local_plan().items == self._wanted)
        if fits:
            self.sources = self._resolve()
        return fits

    def objects(self) -> dict[str, bytes]:
        """The present objects that are not tensors, ready to be stored."""
        groups = {"param_groups": hyperparameters(self._state)}
        now, _ = flatten_state_dict({"optimizer": groups, "extra": packed_extra(self._state)})
        self._planner.state_dict.update(
            {key: now[key] for key in now if key in self._planner.state_dict}
        )
        return {item.index.fqn: self._pickle(item) for item in self._object_items}

    def _deduplicate(self, plans: list[SavePlan]) -> list[tuple[SavePlan, Metadata | None, bool]]:
        replicated = all(plan.items == plans[0].items for plan in plans)
        shared, metadata = self._planner.create_global_plan(plans)
        return [(plan, None if rank else metadata, replicated) for rank, plan in enumerate(shared)]

    def _places(self, rank: int) -> Places:
        items = zip(self._tensor_items, self.spans, strict=True)
        return {
            item.index: _StorageInfo(tensor_file(rank), span.offset, span.length)
            for item, span in items
        }

    def _owned(self, rank: int) -> Owners:
        return {item.index.fqn: rank for item in self._object_items}

    def _resolve(self) -> Sources:
        tensors = [cast(Tensor, self._planner.resolve_data(item)) for item in self._tensor_items]
        updated = updated_tensors(self._state)
        storages = {tensor.untyped_storage().data_ptr() for tensor in updated}
        late = [tensor.untyped_storage().data_ptr() in storages for tensor in tensors]
        return Sources(
            tensors=tensors,
            late=[number for number, is_late in enumerate(late) if is_late],
            early=[number for number, is_late in enumerate(late) if not is_late],
            updated=_addresses(updated),
        )

    def _pickle(self, item: WriteItem) -> bytes:
        """The object as DCP stores it. Most objects are the same in every save.

        Raises ConfigurationError for one that a restore would refuse.
        """
        value, name = self._planner.lookup_object(item.index), item.index.fqn
        if name not in self._pickled or not _same(self._pickled[name][0], value):
            stream = io.BytesIO()
            require_plain(name, value)
            torch.save(value, stream)
            self._pickled[name] = (value, stream.getvalue())
        return self._pickled[name][1]


def _planner(tensors: dict[str, Any]) -> DefaultSavePlanner:
    planner = DefaultSavePlanner()
    planner.set_up_planner(tensors, is_coordinator=dist.get_rank() == 0)
    return planner


def _only(value: T) -> list[T]:
    return [value]


def _addresses(tensors: list[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _same(a: object, b: object) -> bool:
    """Whether two plain values are equal; False for anything else, which is pickled again."""
    plain = (bool, int, float, str, type(None))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and isinstance(a, plain) and a == b
