"""The folders of devcluster's caches and clusters, all below `$REGROUP_CACHE`."""

from __future__ import annotations

from pathlib import Path

from tools.cache import cache_folder


def devcluster() -> Path:
    """Folder of binaries, image layers and the state of clusters."""
    return cache_folder() / "devcluster"


def cluster_state(name: str) -> Path:
    """Folder of all files of one cluster."""
    return devcluster() / "clusters" / name
