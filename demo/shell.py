"""What a user types in a shell."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from demo.errors import StoryError


def type_line(
    line: str, environment: Mapping[str, str], seconds: float, folder: Path | None = None
) -> tuple[int, str]:
    """Type a line: exit code, and what it printed on both outputs. Raises StoryError when it does
    not end within so many seconds.
    """
    try:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StoryError(f"`{line}` did not end within {seconds:.0f} s") from error
    return done.returncode, done.stdout
