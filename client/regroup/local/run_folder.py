"""Words for a folder that cannot hold the files of a run."""

from __future__ import annotations

import errno
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNUSABLE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)


def explain(error: OSError, folder: Path) -> str:
    """What went wrong at which path, and what to do where `folder`, that of the run, is at fault.

    The system names no path where a write fails in an open file.
    """
    if error.errno not in (*_FULL, *_UNUSABLE):
        return str(error)
    where = f"{error.filename or folder}: {error.strerror}"
    if error.errno in _FULL:
        return f"{where}: make room, or give this run another folder with --directory"
    return f"{where}: give this run a folder that can be written with --directory"
