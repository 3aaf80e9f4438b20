"""Reading some samples of a user's data set, as the user's DataLoader gives them, into a digest.

Numbers with fractions count by their mean and size alone, and roughly: another processor may
compute them a little differently.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
import xxhash
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from regroup_trainer.data.data_set_fingerprint import VARY
from regroup_trainer.step.measuring import Samples

_ELEMENTS = 2**18
"""Of an array, or characters of a text, that are looked at."""
_DEPTH = 8
"""Of containers in containers."""


def read_digest(dataset: Samples, loader: Mapping[str, Any]) -> str:
    """A digest of four samples at fixed places, each read twice; VARY where it reads differently
    the second time; empty where samples cannot be read or compared. `loader` are the options of
    the DataLoader.

    A data set may open its files when it is first read, in each process anew. So with workers, a
    worker reads.
    """
    size = len(dataset)
    places = sorted({0, size // 3, 2 * size // 3, size - 1}) if size else []
    own = {"persistent_workers": False, "pin_memory": False, "generator": None}
    workers = {"num_workers": min(1, loader.get("num_workers", 0))}
    options = {**loader, **own, **workers, "batch_sampler": [[place] for place in 2 * places]}
    with _kept_random_numbers(), contextlib.suppress(Exception):  # training raises it, if it stays
        batches = DataLoader(cast(Dataset[Any], dataset), **options)
        digests = [_digest(batch) for batch in batches]
        first, again = digests[: len(places)], digests[len(places) :]
        return VARY if first != again else _digest(first) if first else ""
    return ""


@contextlib.contextmanager
def _kept_random_numbers() -> Iterator[None]:
    """What is read here changes no random number of the program."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _digest(value: object) -> str:
    """16 hexadecimal digits. Raises TypeError for a value of which nothing is known."""
    state = xxhash.xxh3_64()
    for part in _parts(value, _DEPTH):
        state.update(part + b"\0")
    return str(state.hexdigest())


def _parts(value: object, depth: int) -> Iterator[bytes]:
    if depth == 0:
        raise TypeError("containers in containers, too many")
    yield type(value).__name__.encode()
    if isinstance(value, Tensor):
        yield from _of_tensor(value.detach())
    elif isinstance(value, np.ndarray | np.generic):
        yield from _of_tensor(torch.as_tensor(np.asarray(value)))
    elif isinstance(value, str):
        yield value[:_ELEMENTS].encode(errors="replace")
    elif isinstance(value, bytes):
        yield value[:_ELEMENTS]
    elif value is None or isinstance(value, bool | int | float | complex):
        yield repr(value).encode()
    else:
        for one in _contents(value):
            yield from _parts(one, depth - 1)


def _of_tensor(value: Tensor) -> Iterator[bytes]:
    yield repr((value.dtype, tuple(value.shape))).encode()
    elements = value.flatten()[:_ELEMENTS].cpu()
    if elements.is_complex():
        elements = torch.view_as_real(elements).flatten()
    if not elements.is_floating_point():
        yield elements.contiguous().numpy().tobytes()
    elif elements.numel():
        exact = elements.double()
        size = exact.square().mean().sqrt().item()
        yield f"{size:.3g} {exact.mean().item() / size if size else 0.0:.2f}".encode()


def _contents(value: object) -> Sequence[object]:
    """What a container holds, in its order."""
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, list | tuple):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if getattr(value, "__dict__", None):
        return [part for item in vars(value).items() for part in item]
    raise TypeError(f"nothing is known of a {type(value).__name__}")
