"""What someone who can write to a volume would put there: a pickle that calls a function."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import torch


class Touch:
    """Whoever unpickles it creates a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def pickled(path: Path) -> bytes:
    """A pickle that creates the folder `path`."""
    return pickle.dumps(Touch(path))


def saved(path: Path) -> bytes:
    """A file of `torch.save` that creates the folder `path` once it is unpickled."""
    stream = io.BytesIO()
    torch.save(Touch(path), stream)
    return stream.getvalue()
