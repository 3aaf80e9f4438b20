"""A Hugging Face dataset on disk, as `datasets.Dataset.save_to_disk` writes it, read as one run of
tokens.

Strings are tokenised and joined by end marks; lists of integers are taken as they are. The tokens
are made once per job (see `token_cache`), so a restarted rank does not even import the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from regroup_trainer.data import files as found_files
from regroup_trainer.data.sequences import Corpus, split, whole
from regroup_trainer.data.token_cache import tokens_of
from regroup_trainer.data.token_run import TokenRun, Tokens
from regroup_trainer.data.tokenizer import tokenizer_of
from regroup_trainer.errors import ConfigurationError, DataError
from regroup_trainer.protocol.config import DataConfig

_ROWS = 1000
"""Rows that are read at a time."""


def load_huggingface(config: DataConfig, directory: Path) -> Corpus:
    """Open the dataset directories that the configuration names. Raises DataError,
    ConfigurationError, StorageError, OSError.
    """
    if not config.paths:
        raise DataError("data.paths: is empty: name the directory that Dataset.save_to_disk made")
    classes = config.classes or tokenizer_of(config.tokenizer).classes
    name = f"{config.tokenizer}-{config.column}-{classes}"
    runs, fingerprints = [], []
    for paths, field in (
        (config.paths, "data.paths"),
        (config.held_out_paths, "data.heldOutPaths"),
    ):
        fingerprint = found_files.fingerprint(
            [file for path in paths for file in _files(path, field)]
        )
        documents = partial(_documents, config, paths)
        runs.append(TokenRun([tokens_of(directory, f"{fingerprint}-{name}", classes, documents)]))
        fingerprints.append(fingerprint)
    apart = bool(config.held_out_paths)
    training, held_out = (
        (whole(runs[0]), whole(runs[1])) if apart else split(runs[0], config.held_out_percent)
    )
    return Corpus(training, held_out, classes, "-".join([*fingerprints, name]))


def _files(path: str, field: str) -> list[found_files.File]:
    if not found_files.is_there(Path(path) / "state.json"):
        problem = f"{path} is no dataset on disk (it has no state.json)"
        hint = (
            "name one split of it"
            if (Path(path) / "dataset_dict.json").exists()
            else "use Dataset.save_to_disk"
        )
        raise DataError(f"{field}: {problem}: {hint}")
    return found_files.find([path], "*.arrow", field)


def _documents(config: DataConfig, paths: tuple[str, ...]) -> Iterator[Tokens]:
    try:
        library = import_module("datasets")
    except ImportError as error:
        problem = "data.source: 'huggingface' needs the package datasets, which this image lacks"
        raise ConfigurationError(f"{problem}: install Regroup's extra data into it") from error
    for path in paths:
        yield from _of_dataset(config, library.load_from_disk(path), path)


def _of_dataset(config: DataConfig, dataset: Any, path: str) -> Iterator[Tokens]:
    if config.column not in dataset.column_names:
        there = ", ".join(dataset.column_names)
        raise DataError(f"data.column: {path} has no column {config.column!r}: use one of {there}")
    tokenizer = tokenizer_of(config.tokenizer)
    classes = config.classes or tokenizer.classes
    for batch in dataset.select_columns([config.column]).iter(_ROWS):
        for row in batch[config.column]:
            yield (
                tokenizer.document(row)
                if isinstance(row, str)
                else _integers(row, config, path, classes)
            )


def _integers(row: object, config: DataConfig, path: str, classes: int) -> Tokens:
    tokens = np.asarray(row)
    if tokens.dtype.kind not in "iu" or tokens.ndim != 1:
        raise DataError(
            f"data.column: {config.column!r} of {path} holds neither strings nor lists of integers"
        )
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < classes:
        problem = f"{config.column!r} of {path} holds tokens from {tokens.min()} to {tokens.max()}"
        raise DataError(
            f"data.classes: {problem}, not below {classes}: give the size of their vocabulary"
        )
    return tokens
