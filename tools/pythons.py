"""The supported versions of Python, from the classifiers of pyproject.toml.

This module runs under any Python 3, so that it can report an unsupported one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tools.progress import ToolError

ROOT = Path(__file__).resolve().parent.parent
_CLASSIFIER = re.compile(r'"Programming Language :: Python :: (3\.\d+)"')
_BASE_IMAGE = re.compile(r"^ARG BASE_IMAGE=(python:(3\.\d+)-\S+)$", re.MULTILINE)


def supported_pythons() -> list[str]:
    """Return the supported versions, the oldest first: 3.11, 3.12, ..."""
    return _CLASSIFIER.findall((ROOT / "pyproject.toml").read_text())


def check_python(version: str) -> None:
    """Raise ToolError with advice unless `version`, such as 3.11, is supported."""
    known = supported_pythons()
    if version not in known:
        raise ToolError(
            f"Python {', '.join(known[:-1])} or {known[-1]} is needed, {sys.executable} is "
            f"{version}: make PYTHON=python{known[-1]} ..."
        )


def base_image_of_dockerfile() -> tuple[str, str]:
    """Return the base image of the Dockerfile and the version of Python in it."""
    found = _BASE_IMAGE.search((ROOT / "Dockerfile").read_text())
    if not found:
        raise ToolError("Dockerfile has no line `ARG BASE_IMAGE=python:...`")
    return found[1], found[2]
