"""Pins what pyproject.toml asks for into requirements/*.txt; `--upgrade` moves the pins to the newest versions."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tools.progress import run_tool, step
from tools.venv import run_uv, uv_binary

_OPTIONS = ("--quiet", "--universal", "--no-header", "--no-annotate", "--no-emit-index-url", "--python-version", "3.11")


def main() -> int:
    """Write all requirement files; pins that still fit stay."""
    uv = uv_binary()
    for source, target in files():
        with step(f"requirements/{target}.txt"):
            run_uv(
                uv, "pip", "compile", *_OPTIONS, *sys.argv[1:], *source, "--output-file", f"requirements/{target}.txt"
            )
    return 0


def files() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the arguments that name what is asked for, and the file that pins it."""
    yield ("requirements/build.in",), "build"
    for extra in ("operator", "trainer", "dev"):
        yield ("--extra", extra, "pyproject.toml"), extra
    yield from (_injected("ranks"), _injected("agent"))


def _injected(part: str) -> tuple[tuple[str, ...], str]:
    """What the operator's image brings into users' images, in the versions that our own images have."""
    name = f"injected-{part}"
    return (f"requirements/{name}.in", "--constraint", "requirements/trainer.txt"), name


if __name__ == "__main__":
    run_tool(main)
