"""The FUSE server of a job's volume: passes everything on to a folder, and can refuse to.

Run by the system's Python, which has Debian's fusepy:

    python3 volume_server.py CONTENT MOUNT FLAG

While the file FLAG exists, it is read-only, as an exported file system becomes: for files that are
open too. A remount cannot do that. With the number of an error in FLAG, all operations fail with
that error, as those of a damaged disk or a stale mount do.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Any

from fusepy import FUSE, Operations, fuse_get_context  # type: ignore[import-not-found]

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
_STATUS = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")
_TIMES = ("st_atime", "st_mtime", "st_ctime")
_ALWAYS = {"init", "destroy", "release", "releasedir"}
"""What is not refused: it belongs to the server, or would leave files open."""
_WRITES = {
    *("create", "write", "truncate", "mkdir", "rmdir", "unlink", "rename", "link", "symlink"),
    *("chmod", "chown", "utimens"),
}


class Passthrough(Operations):  # type: ignore[misc]
    """The operations, on the files of `content`."""

    use_ns = True

    def __init__(self, content: str, flag: str) -> None:
        self._content = content
        self._flag = flag

    def __call__(self, operation: str, path: str, *arguments: Any) -> Any:
        """Called by fusepy for each operation; it gives the number of an OSError to the kernel."""
        number = None if operation in _ALWAYS else self._refusal()
        writes = operation in _WRITES or (operation == "open" and arguments[0] & _WRITE_FLAGS)
        if number is not None and (writes or number != errno.EROFS):
            raise OSError(number, os.strerror(number))
        return getattr(self, operation)(self._content + path, *arguments)

    def _refusal(self) -> int | None:
        """The error to give; None: nothing is refused."""
        try:
            with open(self._flag) as file:
                return int(file.read() or errno.EROFS)
        except FileNotFoundError:
            return None

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        found = os.lstat(path) if fh is None else os.fstat(fh)
        times = {name: getattr(found, f"{name}_ns") for name in _TIMES}
        return {**{name: getattr(found, name) for name in _STATUS}, **times}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(path)]

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(path)
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    def readlink(self, path: str) -> str:
        return os.readlink(path)

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags)

    def create(self, path: str, mode: int, fi: object = None) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT, mode)
        self._own(path)
        return file

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        os.truncate(path if fh is None else fh, length)

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        os.fsync(fh)

    def release(self, path: str, fh: int) -> None:
        os.close(fh)

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)
        self._own(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rename(self, path: str, new: str) -> None:
        os.rename(path, self._content + new)

    def link(self, path: str, target: str) -> None:
        os.link(self._content + target, path)

    def symlink(self, path: str, target: str) -> None:
        os.symlink(target, path)
        self._own(path)

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(path, mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.lchown(path, ctypes.c_int(uid).value, ctypes.c_int(gid).value)  # -1: unchanged

    def utimens(self, path: str, times: tuple[int, int]) -> None:
        os.utime(path, ns=times, follow_symlinks=False)

    @staticmethod
    def _own(path: str) -> None:
        uid, gid, _ = fuse_get_context()
        os.lchown(path, uid, gid)


def main(content: str, mount: str, flag: str) -> None:
    """Serve `content` at `mount` until it is unmounted."""
    os.umask(0)
    FUSE(
        Passthrough(content, flag),
        mount,
        foreground=True,
        allow_other=True,
        default_permissions=True,  # the kernel checks them
        dev=True,
        attr_timeout=0,
        entry_timeout=0,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
