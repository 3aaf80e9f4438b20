"""Text as samples: files in a fixed order, read as one run of bytes, cut into sequences; the tail is held out.

Sample i is the sequence_length + 1 bytes from i x sequence_length on: inputs and, shifted by one, targets. The text is
kept in memory, so it must fit there.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from regroup_trainer.config import DataConfig
from regroup_trainer.data.dataset import Arrays
from regroup_trainer.errors import DataError

Bytes = npt.NDArray[np.uint8]

_BYTE_VALUES = 256

_NOT_TEXT_OF_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
"""Folders of the standard library that differ between installations, or repeat each other."""


@dataclass(frozen=True)
class TextData:
    """Training and held-out samples of `sequence_length` tokens (T)."""

    training: Bytes
    held_out: Bytes
    sequence_length: int
    fingerprint: str
    """Hash over names, sizes and contents of the files."""

    @property
    def samples(self) -> int:
        """Training samples per epoch."""
        return _samples(self.training, self.sequence_length)

    @property
    def held_out_samples(self) -> int:
        """Samples for evaluation."""
        return _samples(self.held_out, self.sequence_length)

    @property
    def targets_per_sample(self) -> int:
        """T."""
        return self.sequence_length

    @property
    def classes(self) -> int:
        """Values of a byte."""
        return _BYTE_VALUES

    def read_training(self, ids: Sequence[int]) -> Arrays:
        """Training samples, [B, T]."""
        return _read(self.training, ids, self.sequence_length)

    def read_held_out(self, ids: Sequence[int]) -> Arrays:
        """Held-out samples, [B, T]."""
        return _read(self.held_out, ids, self.sequence_length)


def load_text(config: DataConfig, sequence_length: int, evaluate: bool) -> TextData:
    """Read what the config names.

    Raises DataError when a path is missing or unreadable, or when there are too few bytes for one training sample, or
    for one held-out sample if there is to be evaluation.
    """
    names, contents = _read_files(config)
    text = np.frombuffer(b"".join(contents), dtype=np.uint8)
    training_bytes = len(text) * (100 - config.held_out_percent) // 100
    data = TextData(text[:training_bytes], text[training_bytes:], sequence_length, _fingerprint(names, contents))
    _require_samples(config, data, evaluate)
    return data


def _read_files(config: DataConfig) -> tuple[list[str], list[bytes]]:
    names: list[str] = []
    contents: list[bytes] = []
    for root, files in _roots(config):
        try:
            contents += [file.read_bytes() for file in files]
        except OSError as error:
            raise _unreadable(error) from error
        names += [file.relative_to(root).as_posix() for file in files]
    return names, contents


def _roots(config: DataConfig) -> list[tuple[Path, list[Path]]]:
    """Each root with its files, sorted by name, so that every worker sees the same order."""
    if not config.paths:
        library = Path(sysconfig.get_paths()["stdlib"])
        return [(library, _files_below(library, config.pattern, _NOT_TEXT_OF_THE_LIBRARY))]
    return [_user_root(Path(path), config.pattern) for path in config.paths]


def _user_root(path: Path, pattern: str) -> tuple[Path, list[Path]]:
    if path.is_dir():
        files = _files_below(path, pattern, frozenset())
        if not files:
            raise DataError(f"data.pattern: {pattern!r} matches no file below {path}: choose another pattern or path")
        return path, files
    if not path.exists():
        raise DataError(f"data.paths: {path} does not exist on this worker: mount it, or name another path")
    return path.parent, [path]


def _files_below(root: Path, pattern: str, skipped_folders: frozenset[str]) -> list[Path]:
    found: list[str] = []
    for folder, folders, files in os.walk(root, onerror=_fail):
        folders[:] = [name for name in folders if name not in skipped_folders]  # os.walk goes on with what is left
        found += [os.path.join(folder, name) for name in fnmatch.filter(files, pattern)]  # noqa: PTH118 - 10x faster
    return [Path(name) for name in sorted(found)]


def _fail(error: OSError) -> None:
    raise _unreadable(error) from error


def _unreadable(error: OSError) -> DataError:
    problem = f"{error.filename} cannot be read ({error.strerror})"
    return DataError(f"data.paths: {problem}: make it readable for user {os.getuid()}")


def _fingerprint(names: list[str], contents: list[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, content in zip(names, contents, strict=True):
        digest.update(f"{len(name)}:{name}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


def _require_samples(config: DataConfig, data: TextData, evaluate: bool) -> None:
    needed = data.sequence_length + 1
    if data.samples < 1:
        raise DataError(
            f"data.paths: {len(data.training)} bytes for training are too few for one sample of {needed} bytes "
            f"(training.sequenceLength + 1): give more text or a shorter sequence"
        )
    if evaluate and data.held_out_samples < 1:
        raise DataError(
            f"data.heldOutPercent: {config.held_out_percent} % keeps {len(data.held_out)} bytes for evaluation, too "
            f"few for one sample of {needed} bytes: raise it, give more text, or set evaluation.everySteps to 0"
        )


def _samples(text: Bytes, sequence_length: int) -> int:
    return max(0, (len(text) - 1) // sequence_length)


def _read(text: Bytes, ids: Sequence[int], sequence_length: int) -> Arrays:
    starts = np.asarray(ids, dtype=np.int64)[:, None] * sequence_length
    tokens = text[starts + np.arange(sequence_length + 1)].astype(np.int64)
    return Arrays(tokens[:, :-1], tokens[:, 1:])
