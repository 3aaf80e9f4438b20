"""Reads one file of safetensors as it comes. What another program writes is not trusted: the header
is checked, the size is bounded before anything of it is kept, and the checksum is compared.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from regroup.local.checkpoint_list import MOST_SHOWN, error_of, exported_step
from regroup.training_client.client_errors import TrainingClientError
from regroup_trainer.protocol.exit_codes import KILLED
from regroup_trainer.protocol.message import printable, shorten

MOST_BYTES = 16 * 2**30
"""Of the weights that a caller takes by default."""
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Type of safetensors -> bytes of an element."""
_MOST_HEADER_BYTES = 2**24
_MOST_WEIGHTS = 2**17
_MOST_DIMENSIONS = 32


@dataclass(frozen=True)
class ProgramEnd:
    """How the program that writes the stream has ended."""

    exit_code: int
    stderr: str


@dataclass(frozen=True)
class WeightStream:
    """A program that writes the weights of a checkpoint: `regroup checkpoint export --out -`."""

    where: str
    """Where it runs, for messages."""
    chunks: Iterator[bytes]
    """Its standard output."""
    end: Callable[[], ProgramEnd]
    """Waits for its end, once the chunks are read."""


@dataclass(frozen=True)
class Weight:
    """A tensor of the stream."""

    name: str
    dtype: str
    """A key of ITEM_BYTES."""
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def no_checkpoint(job: str) -> TrainingClientError:
    """The error for a job that has not saved."""
    return TrainingClientError(f"load_state_dict: job {job} has no checkpoint yet: wait for one")


def read_weights(stream: WeightStream, most_bytes: int) -> Iterator[tuple[Weight, bytearray]]:
    """Yield each tensor with its content. Raises TrainingClientError, after the last one also for
    a checksum that differs: what was read before is not to be used then.
    """
    content = _Content(stream)
    length = int.from_bytes(content.take(8), "little")
    if length > _MOST_HEADER_BYTES:
        raise content.unreadable(f"its header has {length} bytes")
    weights = _parse(content, bytes(content.take(length)))
    total = sum(weight.size for weight in weights)
    if total > most_bytes:
        raise TrainingClientError(
            f"load_state_dict: the weights have {total:,} bytes, and at most {most_bytes:,} are "
            "allowed: set max_bytes, if this machine has the memory"
        )
    for weight in weights:
        yield weight, content.take(weight.size)
    content.finish()


class _Content:
    """The bytes of a stream, in the pieces that are asked for."""

    def __init__(self, stream: WeightStream) -> None:
        self._stream = stream
        self._rest = memoryview(b"")
        self._checksum = hashlib.blake2b()

    def take(self, size: int) -> bytearray:
        """So many bytes. Raises TrainingClientError where the stream ends before."""
        taken = bytearray(size)
        done = 0
        while done < size:
            piece = self._piece()
            part, self._rest = piece[: size - done], piece[size - done :]
            taken[done : done + len(part)] = part
            done += len(part)
        self._checksum.update(taken)
        return taken

    def _piece(self) -> memoryview:
        while not self._rest:
            chunk = next(self._stream.chunks, None)
            if chunk is None:
                self._require_success()
                raise self.unreadable("it ends too early")
            self._rest = memoryview(chunk)
        return self._rest

    def finish(self) -> None:
        """Raises TrainingClientError where more follows, or the checksum differs."""
        if self._rest or any(self._stream.chunks):
            raise self.unreadable("more follows than its header says")
        said = self._require_success().stderr
        if exported_step(said, self._checksum.hexdigest()) is None:
            raise self.unreadable("its checksum differs")

    def _require_success(self) -> ProgramEnd:
        end = self._stream.end()
        if end.exit_code == KILLED:
            raise TrainingClientError(
                f"load_state_dict: {self._stream.where} was killed, as for a lack of memory: a "
                "tensor may be too large for it; use `regroup checkpoint export` instead"
            )
        if end.exit_code:
            reason = error_of(end.stderr, end.exit_code)
            raise TrainingClientError(f"load_state_dict: {reason} (in {self._stream.where})")
        return end

    def unreadable(self, why: str) -> TrainingClientError:
        """The error for what is no stream of weights."""
        return TrainingClientError(
            f"load_state_dict: what {self._stream.where} sends cannot be read: {why}: try again, "
            "and use a client of the job's release"
        )


def _parse(content: _Content, header: bytes) -> list[Weight]:
    """The tensors in their order. Raises TrainingClientError."""
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        if len(entries) > _MOST_WEIGHTS:
            raise ValueError(f"it has more than {_MOST_WEIGHTS} tensors")
        weights, end = [], 0
        for name, entry in entries.items():
            weight = _weight(name, entry)
            begin, end = end, end + weight.size
            if entry["data_offsets"] != [begin, end]:
                raise ValueError(f"{shorten(name)} does not follow the tensor before it")
            weights.append(weight)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise content.unreadable(
            f"its header is none ({printable(str(error)[:MOST_SHOWN])})"
        ) from None
    return weights


def _weight(name: str, entry: dict[str, Any]) -> Weight:
    dtype, shape = entry["dtype"], entry["shape"]
    if dtype not in ITEM_BYTES:
        raise ValueError(f"{shorten(name)} has an unknown type")
    if len(shape) > _MOST_DIMENSIONS or not all(type(n) is int and 0 <= n < 2**48 for n in shape):
        raise ValueError(f"{shorten(name)} has an impossible shape")
    return Weight(name, dtype, tuple(shape))
