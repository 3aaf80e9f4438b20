"""A low limit of open files, as many systems start processes with."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

from regroup_trainer.system.server_connections import OPEN_FILES


@contextlib.contextmanager
def few_open_files() -> Iterator[tuple[int, int]]:
    """The soft limit of this process is 256. Yields the limits to which our programs raise it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = limits[1]
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        yield most, hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
