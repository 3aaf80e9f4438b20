"""Which errors of a volume may pass, and which say something about the file or the job."""

from __future__ import annotations

import errno

_AWAY = frozenset(
    {
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.ENOTCONN,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
    }
)
_PASSING = _AWAY | {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


def is_away(error: OSError) -> bool:
    """Whether the volume is not reached. EIO may also be a damaged file, and is not meant."""
    return error.errno in _AWAY


def may_pass(error: OSError) -> bool:
    """Whether a volume that is full, read-only or away gives this error. Others, such as a lack of
    permission, last until somebody changes the job.
    """
    return error.errno in _PASSING
