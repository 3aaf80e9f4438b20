"""Makes `.venv`: pinned dependencies out of a shared cache, and this clone installed editable.

uv hard-links packages from `$REGROUP_CACHE/uv`, so that a second clone has its environment, CUDA torch included, in
seconds. A stamp inside the environment holds the hash of all that went into it and is written last: an environment
without a stamp was interrupted and is made anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.cache import cache_folder, locked
from tools.debian import ensure_packages
from tools.indexes import uv_environment
from tools.progress import ToolError, run_tool, step

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "regroup-stamp"
OLDEST, TOO_NEW = (3, 11), (3, 14)


def main() -> int:
    """Make or bring up to date the virtual environment of this clone."""
    check_python(sys.version_info[:2])
    fingerprint = hash_of(ROOT / "requirements" / "dev.txt", ROOT / "pyproject.toml")
    with locked(cache_folder() / "locks" / f"venv-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]}"):
        if _stamp() != fingerprint:
            make(fingerprint)
    return 0


def check_python(version: tuple[int, int]) -> None:
    """Refuse a Python that the project does not support, with a sentence that says what to do."""
    if not OLDEST <= version < TOO_NEW:
        found = ".".join(map(str, version))
        raise ToolError(f"Python 3.11, 3.12 or 3.13 is needed, {sys.executable} is {found}: make PYTHON=python3.12 ...")


def hash_of(*files: Path) -> str:
    """Return a line for the Python in use and a line for the contents of `files`."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return f"{_python()}\n{digest.hexdigest()}\n"


def make(fingerprint: str) -> None:
    """Create the environment if there is no whole one, install into it, and stamp it."""
    uv = uv_binary()
    stamp = _stamp()
    whole = stamp is not None and stamp.startswith(f"{_python()}\n")
    STAMP.unlink(missing_ok=True)
    with step("virtual environment .venv (the first time, up to 3 GB of packages are fetched)"):
        if not whole:
            run_uv(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(VENV))
        python = ("--python", str(VENV / "bin" / "python"))
        run_uv(uv, "pip", "install", "--quiet", *python, "--requirement", "requirements/dev.txt")
        _install_ourselves(uv, python)
    STAMP.write_text(fingerprint)


def _install_ourselves(uv: Path, python: tuple[str, str]) -> None:
    """Add this clone, editable, and remove what no file asks for any more.

    hatchling is among the requirements, so that building our own package needs no network.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as own:
        own.write(f"--editable {ROOT.as_uri()}\n")
        own.flush()
        wanted = ("requirements/dev.txt", own.name)
        run_uv(uv, "pip", "sync", "--quiet", "--offline", "--no-build-isolation", *python, *wanted)


def uv_binary() -> Path:
    """Return uv in the pinned version, installed by pip into the cache if it is not there."""
    pin = next(
        line for line in (ROOT / "requirements" / "build.txt").read_text().splitlines() if line.startswith("uv==")
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
    if subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True, check=False).returncode != 0:
        ensure_packages(["python3-venv"], "Python's venv module, to make virtual environments")
    _run([sys.executable, "-m", "venv", str(unfinished)], {})
    pip = [str(unfinished / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", pin]
    _run(pip, {})
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)  # uv is one binary, so the folder may be moved


def run_uv(uv: Path, *arguments: str) -> None:
    """Run uv with the caller's package indexes and the shared cache."""
    _run([str(uv), *arguments], {**uv_environment(), "UV_CACHE_DIR": str(cache_folder() / "uv")})


def _run(command: list[str], extra: dict[str, str]) -> None:
    result = subprocess.run(command, cwd=ROOT, env={**os.environ, **extra}, check=False)
    if result.returncode != 0:
        raise ToolError(f"`{' '.join(command)}` failed; if a package index can't be reached, set PIP_INDEX_URL")


def _python() -> str:
    return f"{Path(sys.executable).resolve()} {sys.version}".replace("\n", " ")


def _stamp() -> str | None:
    return STAMP.read_text() if STAMP.exists() and (VENV / "bin" / "python").exists() else None


if __name__ == "__main__":
    run_tool(main)
