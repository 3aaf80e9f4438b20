"""The output of the tools: one line when a step begins, and one with its duration when it ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ToolError(Exception):
    """An error whose message says what is wrong and what to do. It is printed
    without a traceback.
    """


def report(sentence: str) -> None:
    """Print one line and flush it."""
    print(sentence, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print `title`, and after the block how long the step took. A failed step
    prints no duration.
    """
    report(f"==> {title}")
    start = time.monotonic()
    yield
    report(f"    done after {time.monotonic() - start:.1f} s")


def run_tool(main: Callable[[], int]) -> None:
    """Run `main` and end the process with its exit code. A ToolError is printed and gives exit code
    1.
    """
    try:
        sys.exit(main())
    except ToolError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT, as in a shell
