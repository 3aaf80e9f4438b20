"""torchft, of which the benchmark of scale needs the lighthouse alone: one library of its wheel."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tools.cache import cache_folder
from tools.locks import locked
from tools.progress import ToolError
from tools.venv import run_uv, uv_binary

PACKAGE = "torchft-nightly==2026.10.26"
LIBRARIES = "torchft/_torchft*.so"


@cache
def lighthouse_library(report: Callable[[str], None]) -> Path | None:
    """Return the library with the lighthouse, from a folder in the cache. The package is fetched
    into it, without what it needs for training. None, and a line with the cause: there is none.
    """
    python = "".join(map(str, sys.version_info[:2]))
    folder = cache_folder() / "bench" / f"{PACKAGE.replace('==', '-')}-cp{python}"
    try:
        with locked(folder.with_suffix(".lock"), PACKAGE, report):
            if not folder.exists():
                report(f"fetching {PACKAGE}")
                _fetch(folder)
    except ToolError as error:
        report(f"no row of torchft: {PACKAGE} could not be installed: {error}")
        return None
    return next(folder.glob(LIBRARIES))


def _fetch(folder: Path) -> None:
    """Raises ToolError, for example where there is no wheel for this Python."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    into = ("--target", str(unfinished), "--python", sys.executable)
    only = ("--quiet", "--no-deps", "--only-binary", ":all:")
    run_uv(uv_binary(), "pip", "install", *only, *into, PACKAGE)
    if not any(unfinished.glob(LIBRARIES)):
        raise ToolError(f"it has no {LIBRARIES}")
    unfinished.rename(folder)
