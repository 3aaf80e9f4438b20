"""Tokens that were computed once and are kept in the job's directory, where a restarted rank reads
them.

Ranks that need them at the same time all compute them, and the last rename wins. The results are
equal, and no rank waits for one that might die. The files have nanoGPT's format: unsigned integers
and nothing else.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from regroup_trainer.data.files import device_of, is_there, naming
from regroup_trainer.data.token_run import TokenPart, Tokens, TokensInFile, TokensInMemory
from regroup_trainer.errors import StorageError
from regroup_trainer.system.background import note_progress
from regroup_trainer.system.volume_errors import may_pass


def tokens_of(
    directory: Path, key: str, classes: int, make: Callable[[], Iterable[Tokens]]
) -> TokenPart:
    """The tokens (below `classes`) of this key, from the job's `directory` or else from `make`.

    Raises StorageError where they must not be written, OSError where a volume fails now.
    """
    dtype = np.dtype("<u2" if classes <= 2**16 else "<u4")
    path = directory / "tokens" / f"{key}.bin"
    if not is_there(path):
        try:
            with naming(path):
                _write(path, (tokens.astype(dtype).tobytes() for tokens in make()))
        except OSError as error:
            if may_pass(error) or not str(error.filename).startswith(str(path.parent)):
                raise
            problem = f"tokens cannot be written to {path} ({error.strerror})"
            raise StorageError(f"{problem}: let user {os.getuid()} write there") from error
    length = path.stat().st_size // dtype.itemsize
    if not length:
        return TokensInMemory(np.empty(0, dtype))
    return TokensInFile(path, dtype.str, 0, length, device_of(directory.stat()))


def _write(path: Path, chunks: Iterable[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
                note_progress()
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).rename(path)
    except BaseException:
        Path(temporary).unlink()
        raise
