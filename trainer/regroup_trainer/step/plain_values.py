"""What a state may hold besides tensors: plain values, which can be read without running code.

Whoever can write to the volume could otherwise run code in the ranks that restore: Python's pickle
calls what the file names. torch's `weights_only` reads tensors and plain values only. Numbers of
numpy and arrays of them are added here.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
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
_NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
"""numpy's codes of numbers."""


def require_plain(where: str, value: object) -> None:
    """Raises ConfigurationError that names what in `value` a checkpoint cannot hold."""
    for path, found in _foreign(value):
        raise ConfigurationError(
            f"{where}{path} is a {type(found).__module__}.{type(found).__qualname__}, which a "
            "checkpoint cannot hold: its state_dict() must give tensors, arrays of numbers, and "
            "plain values (numbers, strings, bytes, lists, tuples, dicts)"
        )


def load_plain(content: bytes, what: str) -> Any:
    """A value that `torch.save` wrote. With REGROUP_TRUST_CHECKPOINTS=1 it may run code.

    Raises CheckpointError, which names `what`, for other than tensors and plain values.
    """
    weights_only = os.environ.get(TRUST_CHECKPOINTS) != "1"
    try:
        with safe_globals(_READ_AS):
            return _with_arrays(torch.load(io.BytesIO(content), weights_only=weights_only))
    except pickle.UnpicklingError as error:
        raise not_plain(what, error) from error


def not_plain(what: str, error: pickle.UnpicklingError) -> CheckpointError:
    """The error for `what`, which torch has refused to read."""
    return CheckpointError(
        f"{what} holds more than tensors and plain values, and reading it could run code "
        f"({_reason(error)}): if only people whom you trust can write to the volume, set "
        f"the environment variable {TRUST_CHECKPOINTS}=1 in the template until the next "
        "checkpoint is saved"
    )


def _foreign(value: object) -> Iterator[tuple[str, object]]:
    """The objects in nested containers that are not plain, and where they are. No recursion: a
    user's value may be nested as deeply as it likes, or contain itself.
    """
    waiting, seen = [("", value)], set[int]()
    while waiting:
        path, found = waiting.pop()
        if type(found) in (*_CONTAINERS, Tensor, torch.nn.Parameter):
            if id(found) not in seen:
                seen.add(id(found))
                waiting.extend(_children(path, found))
        elif type(found) not in _SINGLE and not _is_of_numpy(found):
            yield path, found


def _children(path: str, parent: Any) -> list[tuple[str, object]]:
    if isinstance(parent, Tensor):
        return [(f"{path}.{name}", value) for name, value in vars(parent).items()]
    if isinstance(parent, dict):
        keys = [(f"{path}, key {key!r:.50}", key) for key in parent]
        return [*keys, *((f"{path}[{key!r:.50}]", item) for key, item in parent.items())]
    return [(f"{path}[{number}]", item) for number, item in enumerate(parent)]


def _is_of_numpy(value: object) -> bool:
    """Whether this is one of numpy's numbers, or an array of them."""
    if type(value) is np.ndarray:
        return value.dtype.str[1:] in _NUMBERS
    is_own = type(value).__module__ == "numpy"
    return is_own and isinstance(value, np.generic) and value.dtype.str[1:] in _NUMBERS


class _Dtype:
    """numpy's type of a number, of which the code counts only. numpy's own class would take a
    hostile state, and then read memory that is not the file's.
    """

    byte_order = "<"

    def __init__(self, code: str, *_flags: object) -> None:
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.byte_order = state[1] if state[1] in ("<", ">") else "<"


class _Array:
    """An array of numpy, as far as it is read: its own class would take any state."""

    state: Any = None

    def __init__(self, *_kind: object) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    @cached_property
    def array(self) -> np.ndarray:
        """What the state says; the same one however often the file names it.

        Raises UnpicklingError for other than an array of numbers.
        """
        try:
            _version, shape, dtype, is_fortran, content = self.state
            numbers = _numbers(dtype, content)
            return numbers.reshape(shape, order="F" if is_fortran else "C")
        except (TypeError, ValueError) as error:
            raise pickle.UnpicklingError(f"a damaged array of numpy: {error}") from error


def _numbers(dtype: object, content: Any) -> np.ndarray:
    """The numbers in `content`. Raises UnpicklingError for other types, ValueError for bytes that
    are no whole number of them.
    """
    if type(dtype) is not _Dtype or dtype.code not in _NUMBERS:
        raise pickle.UnpicklingError("a value of numpy that is not a number")
    return np.frombuffer(content, np.dtype(dtype.byte_order + dtype.code)).copy()


def _scalar(dtype: object, content: Any) -> bool | int | float:
    """A number of numpy, as Python's."""
    try:
        number = _numbers(dtype, content).item()
    except (TypeError, ValueError) as error:
        raise pickle.UnpicklingError(f"a damaged number of numpy: {error}") from error
    assert isinstance(number, (bool, int, float))
    return number


def _no_bytes() -> bytes:
    """How a pickle of protocol 2, which torch writes, says b"": by a call of `bytes`."""
    return b""


def _with_arrays(value: Any) -> Any:
    """The value with an array in each place of an `_Array`."""
    if not any(type(found) is _Array for _path, found in _foreign(value)):
        return value
    try:
        return _replaced(value, set())
    except RecursionError as error:
        raise pickle.UnpicklingError("arrays of numpy that are nested too deeply") from error


def _replaced(value: Any, seen: set[int]) -> Any:
    if type(value) is _Array:
        return value.array
    if type(value) is tuple:
        return tuple(_replaced(item, seen) for item in value)
    if id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, Tensor):
            _replaced(vars(value), seen)
        elif isinstance(value, dict):
            value.update({key: _replaced(item, seen) for key, item in value.items()})
        elif isinstance(value, list):
            value[:] = [_replaced(item, seen) for item in value]
    return value


_READ_AS: list[Any] = [
    (_no_bytes, "builtins.bytes"),
    (_scalar, "numpy._core.multiarray.scalar"),
    (_scalar, "numpy.core.multiarray.scalar"),
    (_Array, "numpy._core.multiarray._reconstruct"),
    (_Array, "numpy.core.multiarray._reconstruct"),
    (_Array, "numpy.ndarray"),
    (_Dtype, "numpy.dtype"),
]
"""What stands for a name in a file; torch has the rest of the list."""


def _reason(error: Exception) -> str:
    """torch's reason, without its advice to read the file after all."""
    named = re.search(r"GLOBAL (\S+)", str(error))
    return f"it names {named[1][:100]}" if named else "it is damaged, or made by other means"
