"""The cache folder `REGROUP_CACHE`. It holds what a second run need not fetch or build again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tools.progress import ToolError


def cache_folder() -> Path:
    """Return the cache folder: `REGROUP_CACHE`, by default ~/.cache/regroup. Makes it where it is
    missing. Raises ToolError where this user cannot write it.
    """
    folder = Path(os.environ.get("REGROUP_CACHE") or "~/.cache/regroup").expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ToolError(
            f"cannot use the cache {folder}: {error.strerror} (downloads and builds are kept "
            "there): set REGROUP_CACHE to a folder that this user can write"
        ) from None
    return folder
