"""The cache folder `REGROUP_CACHE`. It holds what a second run need not fetch or build again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder: `REGROUP_CACHE`, by default ~/.cache/regroup."""
    return Path(os.environ.get("REGROUP_CACHE") or "~/.cache/regroup").expanduser().resolve()
