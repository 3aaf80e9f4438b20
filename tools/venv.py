"""Creates `.venv` with the pinned dependencies from a shared cache, and this clone installed
editable.

uv hard-links packages from `$REGROUP_CACHE/uv`. A second clone therefore has its environment, CUDA
torch included, in seconds. A stamp file in the environment holds the hash of its inputs. It is
written last, so an environment without a stamp is incomplete and is created again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.cache import cache_folder
from tools.debian import ensure_packages
from tools.indexes import uv_environment
from tools.locks import locked
from tools.progress import ToolError, report, run_tool, step
from tools.pythons import ROOT, check_python
from tools.uv_progress import run_with_progress

VENV = ROOT / ".venv"
STAMP = VENV / "regroup-stamp"


def main() -> int:
    """Create or update the virtual environment of this clone."""
    check_python(".".join(map(str, sys.version_info[:2])))
    fingerprint = hash_of(ROOT / "requirements" / "dev.txt", ROOT / "pyproject.toml")
    clone = hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]
    with locked(cache_folder() / "locks" / f"venv-{clone}", ".venv", report):
        if _stamp() != fingerprint:
            make(fingerprint)
    return 0


def hash_of(*files: Path) -> str:
    """Return a line for the Python in use and a line for the contents of `files`."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return f"{_python()}\n{digest.hexdigest()}\n"


def make(fingerprint: str) -> None:
    """Create the environment if there is no complete one, install into it and write the stamp."""
    uv = uv_binary()
    stamp = _stamp()
    complete = stamp is not None and stamp.startswith(f"{_python()}\n")
    STAMP.unlink(missing_ok=True)
    with step("virtual environment .venv (fetches up to 3 GB of packages the first time)"):
        if not complete:
            run_uv(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(VENV))
        python = ("--python", str(VENV / "bin" / "python"))
        run_uv(uv, "pip", "install", *python, "--requirement", "requirements/dev.txt")
        _install_ourselves(uv, python)
    STAMP.write_text(fingerprint)


def _install_ourselves(uv: Path, python: tuple[str, str]) -> None:
    """Install this clone editable and remove packages that no file requires any more.

    hatchling is among the requirements, so building our own package needs no network.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as own:
        own.write(f"--editable {ROOT.as_uri()}\n")
        own.flush()
        wanted = ("requirements/dev.txt", own.name)
        run_uv(uv, "pip", "sync", "--quiet", "--offline", "--no-build-isolation", *python, *wanted)


def uv_binary() -> Path:
    """Return the path of uv in the pinned version. pip installs it into the cache when it is
    missing.
    """
    pin = next(
        line
        for line in (ROOT / "requirements" / "build.txt").read_text().splitlines()
        if line.startswith("uv==")
    )
    folder = cache_folder() / "tools" / pin.replace("==", "-")
    if not (folder / "bin" / "uv").exists():
        with step(f"{pin}, which installs the Python packages"):
            _install_uv(pin, folder)
    return folder / "bin" / "uv"


def _install_uv(pin: str, folder: Path) -> None:
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    if (
        subprocess.run(
            [sys.executable, "-c", "import ensurepip"], capture_output=True, check=False
        ).returncode
        != 0
    ):
        ensure_packages(["python3-venv"], "Python's venv module, to make virtual environments")
    _run([sys.executable, "-m", "venv", str(unfinished)], {})
    pip = [
        str(unfinished / "bin" / "pip"),
        "install",
        "--quiet",
        "--disable-pip-version-check",
        pin,
    ]
    _run(pip, {})
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)  # uv is one binary, so the folder may be moved


def run_uv(uv: Path, *arguments: str) -> None:
    """Run uv with the caller's package indexes and the shared cache."""
    _run([str(uv), *arguments], {**uv_environment(), "UV_CACHE_DIR": str(cache_folder() / "uv")})


def _run(command: list[str], extra: dict[str, str]) -> None:
    if run_with_progress(command, {**os.environ, **extra}, ROOT) != 0:
        raise ToolError(
            f"`{' '.join(command)}` failed; if no package index can be reached, set PIP_INDEX_URL"
        )


def _python() -> str:
    return f"{Path(sys.executable).resolve()} {sys.version}".replace("\n", " ")


def _stamp() -> str | None:
    return STAMP.read_text() if STAMP.exists() and (VENV / "bin" / "python").exists() else None


if __name__ == "__main__":
    run_tool(main)
