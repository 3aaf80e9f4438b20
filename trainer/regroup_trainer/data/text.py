"""Text as tokens: files in a fixed order, read as one run.

With the byte vocabulary, a few files are joined in memory and many are read in place. Any other
vocabulary is applied once per job; see `token_cache`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from regroup_trainer.data import files as found_files
from regroup_trainer.data.default_text import default_text
from regroup_trainer.data.files import File
from regroup_trainer.data.sequences import Corpus, split, whole
from regroup_trainer.data.token_cache import tokens_of
from regroup_trainer.data.token_run import TokenPart, TokenRun, Tokens, TokensInFile, TokensInMemory
from regroup_trainer.data.tokenizer import BYTE_VALUES, Tokenizer, tokenizer_of
from regroup_trainer.errors import DataError
from regroup_trainer.protocol.config import DataConfig

_IN_MEMORY = 2**26
"""The most bytes of text that are joined in memory, 64 MiB: there may be thousands of small
files.
"""


def load_text(config: DataConfig, directory: Path) -> Corpus:
    """Open the files that the configuration names; `directory` is the job's. Raises DataError,
    StorageError, OSError.
    """
    pattern = config.pattern or "*.py"
    apart = found_files.find(config.held_out_paths, pattern, "data.heldOutPaths")
    files = found_files.find(config.paths, pattern, "data.paths") or [_default_text(config)]
    fingerprint = found_files.fingerprint([*files, *apart])
    if config.tokenizer == "byte":
        runs, classes = [_bytes_of(part) for part in (files, apart)], BYTE_VALUES
    else:
        tokenizer = tokenizer_of(config.tokenizer)
        runs, classes = (
            [_tokenized(part, tokenizer, directory) for part in (files, apart)],
            tokenizer.classes,
        )
        fingerprint = f"{fingerprint}-{tokenizer.name}"
    training, held_out = (
        (whole(runs[0]), whole(runs[1])) if apart else split(runs[0], config.held_out_percent)
    )
    return Corpus(training, held_out, classes, fingerprint)


def _bytes_of(files: Sequence[File]) -> TokenRun:
    if sum(file.size for file in files) > _IN_MEMORY:
        return TokenRun(
            [
                TokensInFile(file.path, "u1", 0, file.size, file.device)
                for file in files
                if file.size
            ]
        )
    text = b"".join(file.read() for file in files)
    parts: list[TokenPart] = [TokensInMemory(np.frombuffer(text, dtype=np.uint8))]
    return TokenRun(parts)


def _tokenized(files: Sequence[File], tokenizer: Tokenizer, directory: Path) -> TokenRun:
    def documents() -> Iterator[Tokens]:
        return (tokenizer.document(file.read().decode(errors="replace")) for file in files)

    key = f"{found_files.fingerprint(files)}-{tokenizer.name}"
    return TokenRun([tokens_of(directory, key, tokenizer.classes, documents)])


def _default_text(config: DataConfig) -> File:
    if config.pattern and not config.held_out_paths:
        problem = f"data.pattern: {config.pattern!r} chooses among the files of data.paths"
        raise DataError(f"{problem}, which is empty: name a folder there, or remove the pattern")
    return default_text()
