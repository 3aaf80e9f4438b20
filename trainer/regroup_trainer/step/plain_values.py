"""What a state may hold besides tensors: plain values, which can be read without running code.

Whoever can write to the volume could otherwise run code in the ranks that restore: Python's pickle
calls what the file names. torch's `weights_only` reads tensors and plain values only, and numbers
of numpy are added to them here.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.serialization import safe_globals

from regroup_trainer.errors import CheckpointError, ConfigurationError
from regroup_trainer.protocol.environment import TRUST_CHECKPOINTS

_SINGLE = (
    *(bool, int, float, complex, str, bytes, type(None)),
    *(Tensor, torch.nn.Parameter, DTensor),
    *(torch.dtype, torch.device, torch.Size),
)
_CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)
_CODES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_NUMBERS = dict(zip(_CODES, "?bhiqBHIQefd", strict=True))
"""numpy's code of a number -> that of struct."""


def require_plain(where: str, value: object) -> None:
    """Raises ConfigurationError that names what in `value` a checkpoint cannot hold."""
    for path, found in _foreign(value):
        raise ConfigurationError(
            f"{where}{path} is a {type(found).__module__}.{type(found).__qualname__}, which a "
            "checkpoint cannot hold: its state_dict() must give tensors (torch.from_numpy(...)) "
            "and plain values (numbers, strings, bytes, lists, tuples, dicts)"
        )


def load_plain(content: bytes, what: str) -> Any:
    """A value that `torch.save` wrote. With REGROUP_TRUST_CHECKPOINTS=1 it may run code.

    Raises CheckpointError, which names `what`, for other than tensors and plain values.
    """
    weights_only = os.environ.get(TRUST_CHECKPOINTS) != "1"
    try:
        with safe_globals(_NUMPY):
            return torch.load(io.BytesIO(content), weights_only=weights_only)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{what} holds more than tensors and plain values, and reading it could run code "
            f"({_reason(error)}): if only people whom you trust can write to the volume, set "
            f"the environment variable {TRUST_CHECKPOINTS}=1 in the template until the next "
            "checkpoint is saved"
        ) from error


def _foreign(value: object) -> Iterator[tuple[str, object]]:
    """The objects in nested containers that are not plain, and where they are. No recursion: a
    user's value may be nested as deeply as it likes, or contain itself.
    """
    waiting, seen = [("", value)], set[int]()
    while waiting:
        path, found = waiting.pop()
        if type(found) in _CONTAINERS:
            if id(found) not in seen:
                seen.add(id(found))
                waiting.extend(_children(path, found))
        elif type(found) not in _SINGLE and not _is_number(found):
            yield path, found


def _children(path: str, container: Any) -> list[tuple[str, object]]:
    if isinstance(container, dict):
        keys = [(f"{path}, key {key!r:.50}", key) for key in container]
        return [*keys, *((f"{path}[{key!r:.50}]", item) for key, item in container.items())]
    return [(f"{path}[{number}]", item) for number, item in enumerate(container)]


def _is_number(value: object) -> bool:
    """Whether this is a number of numpy, which is not imported for the question."""
    code = str(getattr(getattr(value, "dtype", None), "str", ""))[1:]
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ != "ndarray" and code in _NUMBERS


class _Dtype:
    """numpy's type of a number, of which the code counts only. numpy's own class would take a
    hostile state, and then read memory that is not the file's.
    """

    byte_order = "<"

    def __init__(self, code: str, *_flags: object) -> None:
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.byte_order = state[1] if state[1] in ("<", ">") else "<"


def _scalar(dtype: _Dtype, content: bytes) -> bool | int | float:
    """A number of numpy, as Python's."""
    if type(dtype) is not _Dtype or dtype.code not in _NUMBERS:
        raise pickle.UnpicklingError("a value of numpy that is not a number")
    try:
        (number,) = struct.unpack(dtype.byte_order + _NUMBERS[dtype.code], content)
    except struct.error as error:
        raise pickle.UnpicklingError(f"a damaged number of numpy: {error}") from error
    assert isinstance(number, (bool, int, float))
    return number


_NUMPY: list[Any] = [
    (_scalar, "numpy._core.multiarray.scalar"),
    (_scalar, "numpy.core.multiarray.scalar"),
    (_Dtype, "numpy.dtype"),
]


def _reason(error: Exception) -> str:
    """torch's reason, without its advice to read the file after all."""
    named = re.search(r"GLOBAL (\S+)", str(error))
    return f"it names {named[1][:100]}" if named else "it is damaged, or made by other means"
