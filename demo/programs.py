"""The programs that the demo shows its run with: Prometheus and Chromium, both from Debian.

Prometheus is unpacked from its package, not installed: installing it would start a service of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from demo.errors import MissingError
from tools.debian import ensure_packages
from tools.progress import ToolError


def cache() -> Path:
    """`$REGROUP_CACHE`, by default `~/.cache/regroup`."""
    return Path(os.environ.get("REGROUP_CACHE") or Path.home() / ".cache/regroup").absolute()


def prometheus(name: str = "prometheus") -> str:
    """The path of prometheus or promtool: one that is installed, else that of Debian's package. Raises MissingError."""
    unpacked = cache() / "prometheus"
    found = shutil.which(name) or shutil.which(name, path=str(unpacked / "usr/bin"))
    if found:
        return found
    _unpack("prometheus", unpacked)
    return str(unpacked / "usr/bin" / name)


def chromium() -> str:
    """The path of Chromium, installed with the fonts of the picture if need be. Raises MissingError."""
    if not shutil.which("chromium"):
        try:
            ensure_packages(("chromium", "fonts-inter"), "draws the picture of the dashboard")
        except ToolError as error:
            raise MissingError(str(error)) from error
    found = shutil.which("chromium")
    if not found:
        raise MissingError("chromium is installed but not on PATH: add its folder to PATH and run this again")
    return found


def _unpack(package: str, target: Path) -> None:
    """Put the content of a Debian package into `target`, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        if _run(["apt-get", "download", package], folder).returncode:
            _run(["apt-get", "update"], folder)
            again = _run(["apt-get", "download", package], folder)
            if again.returncode:
                raise MissingError(
                    f"could not get Debian's {package} ({again.stdout[-300:].strip()}): install it by hand"
                )
        (archive,) = Path(folder).glob("*.deb")
        content = Path(folder) / "content"
        done = _run(["dpkg-deb", "--extract", str(archive), str(content)], folder)
        if done.returncode:
            raise MissingError(f"could not unpack Debian's {package}: {done.stdout[-300:].strip()}")
        shutil.rmtree(target, ignore_errors=True)
        content.rename(target)


def _run(command: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except FileNotFoundError as error:
        raise MissingError(
            f"this machine has no {command[0]}: install prometheus by hand and run this again"
        ) from error
