"""Pins the dependencies of pyproject.toml in requirements/*.txt. `--upgrade` selects the newest
versions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tools.progress import run_tool, step
from tools.pythons import supported_pythons
from tools.venv import run_uv, uv_binary

_OPTIONS = (
    "--quiet",
    "--universal",
    "--no-header",
    "--no-annotate",
    "--no-emit-index-url",
)


def main() -> int:
    """Write all requirement files. Pins that still fit stay."""
    uv = uv_binary()
    for source, target in files():
        with step(f"requirements/{target}.txt"):
            run_uv(
                uv,
                "pip",
                "compile",
                *_OPTIONS,
                *("--python-version", supported_pythons()[0]),
                *sys.argv[1:],
                *source,
                "--output-file",
                f"requirements/{target}.txt",
            )
    return 0


def files() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield uv's arguments for a set of dependencies, and the name of the file that pins it."""
    yield ("requirements/build.in",), "build"
    for extra in ("operator", "trainer", "dev"):
        yield ("--extra", extra, "pyproject.toml"), extra
    yield from (_injected("ranks"), _injected("agent"))


def _injected(part: str) -> tuple[tuple[str, ...], str]:
    """The packages that the operator injects into users' images, in the versions of
    our own images.
    """
    name = f"injected-{part}"
    return (f"requirements/{name}.in", "--constraint", "requirements/trainer.txt"), name


if __name__ == "__main__":
    run_tool(main)
