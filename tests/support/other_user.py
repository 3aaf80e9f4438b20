"""Another user than root, who reads and writes everything."""

from __future__ import annotations

import os
import stat
from pathlib import Path

OTHER_USER = 1000


def other_user() -> int:
    """Whom `become_other_user` makes of this process."""
    return OTHER_USER if os.getuid() == 0 else os.getuid()


def become_other_user() -> None:
    """Give up the rights of root for good, if this process has them."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(OTHER_USER)
        os.setuid(OTHER_USER)


def open_to_all(folder: Path) -> None:
    """Let every user enter the folder."""
    for entered in (folder, *folder.parents):
        if not entered.stat().st_mode & stat.S_IXOTH:
            entered.chmod(0o755)
