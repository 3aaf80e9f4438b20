"""Files of tokens: nanoGPT's (16-bit integers and nothing else) and llm.c's (a header, then
integers).

llm.c's header consists of 256 32-bit integers, of which three are used: a magic number, a version
and the number of tokens. GPT-2's tokens have 16 bits, Llama 3's 32.
https://github.com/karpathy/llm.c, dev/data/data_common.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regroup_trainer.data import files as found_files
from regroup_trainer.data.files import File
from regroup_trainer.data.sequences import Corpus, split, whole
from regroup_trainer.data.token_run import TokenRun, TokensInFile
from regroup_trainer.errors import DataError
from regroup_trainer.protocol.config import DataConfig

_HEADER_INTEGERS = 256
_HEADER_BYTES = 4 * _HEADER_INTEGERS


@dataclass(frozen=True)
class Format:
    """A kind of file."""

    version: int | None
    dtype: str
    classes: int
    """The size of the vocabulary that such files usually have."""


_LLM_C = {20240520: Format(1, "<u2", 50257), 20240801: Format(7, "<u4", 128256)}
"""Magic number -> the kind of file."""
_NANO_GPT = Format(None, "<u2", 50257)


def load_tokens(config: DataConfig) -> Corpus:
    """Open the files that the configuration names. Raises DataError, OSError."""
    if not config.paths:
        raise DataError("data.paths: is empty: name .bin files, or folders of them")
    pattern = config.pattern or "*.bin"
    files = found_files.find(config.paths, pattern, "data.paths")
    apart = found_files.find(config.held_out_paths, pattern, "data.heldOutPaths")
    opened = [_open(file) for file in (*files, *apart)]
    classes = config.classes or max(format_.classes for _, format_ in opened)
    parts = [part for part, _ in opened]
    run, held_out_run = TokenRun(parts[: len(files)]), TokenRun(parts[len(files) :])
    training, held_out = (
        (whole(run), whole(held_out_run)) if apart else split(run, config.held_out_percent)
    )
    return Corpus(training, held_out, classes, found_files.fingerprint([*files, *apart]))


def _open(file: File) -> tuple[TokensInFile, Format]:
    with file.opened() as stream:
        header = np.frombuffer(
            stream.read(_HEADER_BYTES), dtype="<i4", count=min(3, file.size // 4)
        )
    if len(header) < 3 or int(header[0]) not in _LLM_C:
        return _raw(file), _NANO_GPT
    magic, version, count = (int(value) for value in header)
    format_ = _LLM_C[magic]
    width = np.dtype(format_.dtype).itemsize
    if version != format_.version:
        problem = f"{file.path} is an llm.c file of version {version}"
        raise DataError(
            f"data.paths: {problem}: magic {magic} is known with version {format_.version} only"
        )
    if file.size != _HEADER_BYTES + count * width:
        problem = (
            f"{file.path} has {file.size} bytes, but its header announces {count} tokens of "
            f"{width} bytes"
        )
        raise DataError(f"data.paths: {problem} after {_HEADER_BYTES} bytes: copy or make it again")
    return TokensInFile(file.path, format_.dtype, _HEADER_BYTES, count, file.device), format_


def _raw(file: File) -> TokensInFile:
    if file.size == 0 or file.size % 2:
        problem = f"{file.path} has {file.size} bytes, which is no whole number of 16-bit tokens"
        raise DataError(
            f"data.paths: {problem}: it is neither a nanoGPT nor an llm.c file, or half of one"
        )
    return TokensInFile(file.path, _NANO_GPT.dtype, 0, file.size // 2, file.device)
