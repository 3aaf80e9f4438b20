"""Writes a shard file at the speed of the device, with its checksum. Torch-free."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path

import xxhash

from regroup_trainer.checkpoint.layout import FileRecord
from regroup_trainer.system.background import Background

_CHUNK_BYTES = 16 << 20
"""Bytes per write: enough for the device, and little enough for the page cache where that is used.
"""
_NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errors of file systems that cannot write past the page cache."""
_NOT_PREALLOCATED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_libc = ctypes.CDLL(None, use_errno=True)


def write(path: Path, content: memoryview, size: int) -> FileRecord:
    """Write the first `size` bytes of `content` to a new file and flush it to the device.

    It bypasses the page cache where the file system allows that: copying into the cache costs more
    processor time than all else. For that `content` must begin and end at page boundaries. A thread
    computes the checksum meanwhile. Raises OSError, and deletes what was written.
    """
    checksum = Background(lambda: xxhash.xxh3_64(content[:size]).hexdigest())
    try:
        try:
            _write(path, content, size, os.O_DIRECT)
        except OSError as error:
            if error.errno not in _NOT_DIRECT:
                raise
            _write(path, content[:size], size, 0)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _explained(error, path, size) from error
    finally:
        found = checksum.result()  # the thread reads the memory until then
    return FileRecord(size=size, checksum=found)


def _write(path: Path, content: memoryview, size: int, flags: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, 0o644)
    try:
        _preallocate(descriptor, size)
        position = 0
        while position < size:
            position += os.pwrite(descriptor, content[position : position + _CHUNK_BYTES], position)
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _preallocate(descriptor: int, size: int) -> None:
    """Reserve the space, so that a full disk is noticed at once. os.posix_fallocate may write zeros
    instead.
    """
    if size and _libc.fallocate(descriptor, 0, ctypes.c_long(0), ctypes.c_long(size)):
        code = ctypes.get_errno()
        if code not in _NOT_PREALLOCATED:
            raise OSError(code, os.strerror(code))


def _explained(error: OSError, path: Path, size: int) -> OSError:
    free = shutil.disk_usage(path.parent).free
    what = (
        f"{error.strerror}: {path.name} needs {size} bytes, {free} bytes are free in "
        f"{path.parent.parent}"
    )
    return OSError(error.errno, what)
