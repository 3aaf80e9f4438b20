"""Installs missing Debian packages with apt-get, as root.

Only one process of the project runs apt-get at a time. apt-get itself does not wait while another
process updates the lists of packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager

from tools.cache import cache_folder
from tools.locks import locked
from tools.progress import ToolError, step

_WAIT = ("--option", "DPkg::Lock::Timeout=300")  # another process may hold dpkg's lock


def missing_packages(packages: Sequence[str]) -> list[str]:
    """Return those of `packages` that are not installed."""
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *packages]
    shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    installed = {line.split()[0] for line in shown.splitlines() if line.endswith(" installed")}
    return [name for name in packages if name not in installed]


def ensure_packages(packages: Sequence[str], reason: str) -> None:
    """Install the missing ones of `packages` and print them with the reason.

    Raises ToolError with the command to run by hand where this machine has no apt-get or the caller
    is not root.
    """
    if shutil.which("dpkg-query") is None:
        raise ToolError(f"this machine has no apt-get: {_by_hand(packages, reason)}")
    missing = missing_packages(packages)
    if missing:
        with step(f"Debian packages {', '.join(missing)}: {reason}"):
            install_packages(missing, reason)


def install_packages(packages: Sequence[str], reason: str) -> None:
    """Install `packages`. The lists of apt are updated only when apt-get fails.

    Raises ToolError as `ensure_packages` does.
    """
    if shutil.which("apt-get") is None:
        raise ToolError(f"this machine has no apt-get: {_by_hand(packages, reason)}")
    if os.geteuid() != 0:
        raise ToolError(
            f"not root: run `sudo apt-get install {' '.join(packages)}` ({reason}), then run this "
            "again"
        )
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *_WAIT, *packages]
    with apt_lock():
        if _apt(install).returncode != 0:
            _apt(["apt-get", "update"])
            result = _apt(install)
            if result.returncode != 0:
                output = result.stdout.strip()[-800:]
                raise ToolError(f"apt-get failed: {output}\n{_by_hand(packages, reason)}")


def _by_hand(packages: Sequence[str], reason: str) -> str:
    return f"install {' '.join(packages)} by hand ({reason}), then run this again"


def apt_lock() -> AbstractContextManager[None]:
    """Lock apt-get against the project's other processes."""
    return locked(cache_folder() / "locks" / "apt", "packages of Debian")


def _apt(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
