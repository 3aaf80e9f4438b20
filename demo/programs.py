"""The programs that show a run: Prometheus, Alertmanager and Chromium, all from Debian.

The packages of the first two are unpacked and not installed. Their installation would start a
service.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from demo.errors import MissingError
from tools.cache import cache_folder
from tools.debian import apt_lock, ensure_packages
from tools.progress import ToolError


def prometheus(name: str = "prometheus") -> str:
    """The path of prometheus or promtool: the installed one, else the one of Debian's package.

    Raises MissingError.
    """
    return _packaged("prometheus", name)


def alertmanager() -> str:
    """The path of Alertmanager, as that of `prometheus`. Raises MissingError."""
    return _packaged("prometheus-alertmanager", "prometheus-alertmanager")


def _packaged(package: str, name: str) -> str:
    unpacked = cache_folder() / package
    program = unpacked / "usr/bin" / name
    if found := shutil.which(name):
        return found
    with apt_lock():
        if not program.exists():
            _unpack(package, unpacked)
    return str(program)


def chromium() -> str:
    """The path of Chromium. Installs it and the fonts of the picture when it is missing. Raises
    MissingError.
    """
    if not shutil.which("chromium"):
        try:
            ensure_packages(("chromium", "fonts-inter"), "draws the picture of the dashboard")
        except ToolError as error:
            raise MissingError(str(error)) from error
    found = shutil.which("chromium")
    if not found:
        raise MissingError(
            "chromium is installed but not on PATH: add its folder to PATH and run this again"
        )
    return found


def _unpack(package: str, target: Path) -> None:
    """Extract a Debian package into `target`. On an error, `target` stays as it was."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        if _run(["apt-get", "download", package], folder).returncode:
            _run(["apt-get", "update"], folder)
            again = _run(["apt-get", "download", package], folder)
            if again.returncode:
                raise MissingError(
                    f"could not get Debian's {package} ({again.stdout[-300:].strip()}): install it "
                    "by hand"
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
            command,
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except FileNotFoundError as error:
        raise MissingError(
            f"this machine has no {command[0]}: install prometheus by hand and run this again"
        ) from error
