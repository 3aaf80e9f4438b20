"""The Python of an image, as far as its name or the caller says it."""

from __future__ import annotations

import pytest

from regroup.training_client.image_python import mismatch, python_of


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("python:3.12-slim", "3.12"),
        ("registry:5000/team/train:2.1-py311", "3.11"),
        ("train:cuda-python3.13", "3.13"),
        ("ghcr.io/py310/train:1", None),
        ("train:3.12", None),
        ("train:1-py3", None),
        (None, None),
    ],
)
def test_tags_that_say_it(image: str | None, version: str | None) -> None:
    assert python_of(image, None) == version


def test_what_the_caller_says_comes_first() -> None:
    assert python_of("python:3.12", "3.11") == "3.11"
    with pytest.raises(ValueError, match=r"write it as '3\.12'"):
        python_of("python:3.12", "3.12.1")


def test_only_a_known_difference_is_refused() -> None:
    assert mismatch("3.12", None, "train:1") == ""
    assert mismatch("3.12", "3.12", "train:1") == ""
    assert "use an image with Python 3.11" in mismatch("3.11", "3.12", "train:1")
