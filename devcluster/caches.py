"""Where devcluster keeps what can be made again: all below one folder, `$REGROUP_CACHE`."""

from __future__ import annotations

import os
from pathlib import Path


def root() -> Path:
    """`$REGROUP_CACHE`, by default `~/.cache/regroup`."""
    return Path(os.environ.get("REGROUP_CACHE") or Path.home() / ".cache" / "regroup").absolute()


def devcluster() -> Path:
    """Binaries, image layers and the state of clusters."""
    return root() / "devcluster"


def cluster_state(name: str) -> Path:
    """Everything one cluster writes."""
    return devcluster() / "clusters" / name
