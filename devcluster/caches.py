"""The folders of devcluster's caches and clusters, all below `$REGROUP_CACHE`."""

from __future__ import annotations

from pathlib import Path

from tools.cache import cache_folder


def root() -> Path:
    """`$REGROUP_CACHE`, by default `~/.cache/regroup`."""
    return cache_folder()


def devcluster() -> Path:
    """Folder of binaries, image layers and the state of clusters."""
    return root() / "devcluster"


def cluster_state(name: str) -> Path:
    """Folder of all files of one cluster."""
    return devcluster() / "clusters" / name
