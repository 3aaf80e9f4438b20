"""Whether the Python of an image can read what this one pickled, as far as is known. Pure."""

from __future__ import annotations

import re

from regroup_operator.api.names import MINOR_VERSION

_OF_TAG = re.compile(r"(?:python:|py|python[-_]?)(3)\.?(\d{1,2})(?!\d)")


def python_of(image: str | None, given: str | None) -> str | None:
    """The minor version of an image's Python, as 3.12: what the caller says, else what its tag
    does, as in python:3.12-slim and train:1-py312. None: nothing does. Raises ValueError.
    """
    if given is not None:
        if not MINOR_VERSION.fullmatch(given):
            raise ValueError(f"python: {given!r} is no minor version: write it as '3.12'")
        return given
    found = _OF_TAG.search((image or "").rpartition("/")[2])
    return f"{found[1]}.{found[2]}" if found else None


def mismatch(here: str, there: str | None, image: str | None) -> str:
    """Why a function that was pickled here cannot run there; empty where it can, or may."""
    if there is None or there == here:
        return ""
    return (
        f"image: {image or 'of the installation'} has Python {there}, and the function was pickled "
        f"by Python {here}: use an image with Python {here}, call train() from Python {there}, or "
        "import within the function all that it uses, so that its text can be sent"
    )
