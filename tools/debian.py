"""Debian packages that a step needs: the missing ones are installed, in one call of apt-get, if we may."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from tools.progress import ToolError, step

_WAIT = ("--option", "DPkg::Lock::Timeout=120")  # another process may be installing too


def missing_packages(packages: Sequence[str]) -> list[str]:
    """Return those of `packages` that dpkg does not hold as installed."""
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *packages]
    shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    installed = {line.split()[0] for line in shown.splitlines() if line.endswith(" installed")}
    return [name for name in packages if name not in installed]


def ensure_packages(packages: Sequence[str], reason: str) -> None:
    """Install what is missing of `packages`; `reason` is told to the user.

    Raises ToolError with the command to run by hand where this machine has no apt-get or we are not root.
    """
    by_hand = f"install {' '.join(packages)} by hand ({reason}), then run this again"
    if shutil.which("apt-get") is None or shutil.which("dpkg-query") is None:
        raise ToolError(f"this machine has no apt-get: {by_hand}")
    missing = missing_packages(packages)
    if not missing:
        return
    if os.geteuid() != 0:
        raise ToolError(f"not root: run `sudo apt-get install {' '.join(missing)}` ({reason}), then run this again")
    with step(f"Debian packages {', '.join(missing)}: {reason}"):
        install = ["apt-get", "install", "--yes", "--no-install-recommends", *_WAIT, *missing]
        if _apt(install).returncode != 0:
            _apt(["apt-get", "update"])
            result = _apt(install)
            if result.returncode != 0:
                raise ToolError(f"apt-get failed: {result.stdout.strip()[-800:]}\n{by_hand}")


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
