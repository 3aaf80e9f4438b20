"""Which errors of a volume may pass, and which say something about a file or the job. Pure.

It works in images without Regroup too: see `protocol/torchrun_programs.py`.
"""

from __future__ import annotations

import errno

AWAY = frozenset(
    {
        errno.EAGAIN,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENODEV,
        errno.ENOTCONN,
        errno.ENXIO,
        errno.EREMOTEIO,
        errno.ESHUTDOWN,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""The server, the network, the device or a FUSE process does not answer."""
PASSING = AWAY | {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
"""EIO too: a soft NFS mount gives it while its server is away."""
_OF_FILE = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.EIO,
        errno.EBADMSG,
        errno.EUCLEAN,
        errno.EILSEQ,
        errno.ENODATA,
    }
)
"""The file is gone, is none, or its blocks cannot be read: EBADMSG and EUCLEAN are checksums and
structures of file systems, EILSEQ and ENODATA what devices say of a bad block.
"""


def is_away(error: OSError) -> bool:
    """Whether the volume is not reached. EIO may also be a damaged file, and is not meant."""
    return error.errno in AWAY


def may_pass(error: OSError) -> bool:
    """Whether a volume that is full, read-only or away gives this error. Others, such as a lack of
    permission, last until somebody changes the job.
    """
    return error.errno in PASSING


def is_of_file(error: OSError) -> bool:
    """Whether an error says that a file is damaged or missing. Any other may come from a volume on
    which all files are whole, such as one that refuses everybody because a ticket has expired.
    """
    return error.errno in _OF_FILE
