"""Collectives of Python objects, and of the errors that all ranks have to raise together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from regroup_trainer.errors import GenerationOverError, SaveError, TrainingError

T = TypeVar("T")
U = TypeVar("U")
_CPU = torch.device("cpu")


def broadcast_from_rank0(action: Callable[[], T]) -> T:
    """Run `action` on rank 0; all ranks return its result, or raise its error. The result must
    pickle.

    That holds for TrainingError, SaveError and GenerationOverError. After any other error of rank
    0, the other ranks lose their peer.
    """
    outcome = _broadcast(_outcome(action) if dist.get_rank() == 0 else None)
    if isinstance(outcome, Exception):
        raise outcome
    return cast(T, outcome)


def all_gather(value: T) -> list[T]:
    """The values of all ranks, in rank order. They must pickle."""
    values: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return cast(list[T], values)


def until_all(ready: Callable[[], bool], too_late: Callable[[], bool] = lambda: False) -> bool:
    """Wait until `ready`, which should wait a moment, is True on all ranks; all return True. Where
    it is `too_late` on any rank before, all return False.

    Raises c10d's errors when a peer is lost meanwhile.
    """
    while True:
        flags = torch.tensor([float(ready()), float(not too_late())])
        dist.all_reduce(flags, dist.ReduceOp.MIN)
        if flags[0].item():
            return True
        if not flags[1].item():
            return False


def gather(value: T) -> list[T] | None:
    """The values of all ranks, in rank order, on rank 0; None elsewhere. They must pickle."""
    values: list[T | None] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, values, dst=0)
    return cast(list[T] | None, values)


def scatter(value: T, decide: Callable[[list[T]], list[U]]) -> U:
    """Rank 0 decides from the values of all ranks what each of them gets; returns this rank's. All
    must pickle.

    After an error of rank 0, the other ranks lose their peer.
    """
    values = gather(value)
    scattered: list[U | None] = [None]
    dist.scatter_object_list(scattered, decide(values) if values is not None else None, src=0)
    return cast(U, scattered[0])


def _outcome(action: Callable[[], object]) -> object:
    try:
        return action()
    except (TrainingError, SaveError, GenerationOverError) as error:
        return error


def _broadcast(value: object) -> object:
    box = [value]
    dist.broadcast_object_list(box, src=0, device=_CPU)
    return box[0]
