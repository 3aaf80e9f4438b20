"""What a user types in a shell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from demo.errors import StoryError
from demo.shell import type_line


def test_both_outputs_and_the_exit_code_are_kept(tmp_path: Path) -> None:
    line = "pwd; echo $NAME >&2; exit 3"
    typed = type_line(line, {**os.environ, "NAME": "you"}, 30, tmp_path)
    assert typed == (3, f"{tmp_path}\nyou\n")


def test_a_line_that_does_not_end_is_named() -> None:
    with pytest.raises(StoryError, match=r"`exec sleep 60` did not end within 0 s"):
        type_line("exec sleep 60", os.environ, 0.1)
