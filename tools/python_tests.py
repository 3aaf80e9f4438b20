"""`make test-python PYTHON=3.14`: the checks and local tests under another Python, in a chroot.

The working tree is copied to the file system of the package cache, where uv can link packages. The
chroot and the virtual environment stay for the next run. The temporary files of a run that fails
stay until then.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cache import cache_folder
from tools.chroots import SHARED, SUITE_OF, TRIXIE, Chroot, Suite, make_system, require_root
from tools.indexes import uv_environment
from tools.locks import locked
from tools.progress import ToolError, report, run_tool, step
from tools.pythons import ROOT, supported_pythons
from tools.venv import uv_binary

_TOOLS = ("ca-certificates", "make", "iproute2", "git", "g++", "e2fsprogs")
"""g++: for training.compile; e2fsprogs: for tests with a volume that does not answer."""
_ALSO = {TRIXIE: ("ubuntu-archive-keyring",)}
_KEPT = {".venv", ".ruff_cache", ".pytest_cache", ".hypothesis"}
"""Files in the copy of the working tree that stay for the next run."""
_OF_THIS_PYTHON = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")


def main() -> int:
    """Run the given targets of make under the given Python. By default `check` and `test-local`."""
    version = chosen_version(sys.argv[1:2])
    require_root()
    uv_binary()  # fetches uv with this machine's settings into the cache of the chroot
    folder = cache_folder() / "pythons" / version
    with locked(cache_folder() / "locks" / f"python-{version}", f"Python {version}", report):
        with step(f"copy of the working tree in {folder}"):
            copy_files(ROOT, tracked_files(), folder)
        temporary = emptied(folder.with_name(f"{version}.tmp"))
        chroot = Chroot(system_of(SUITE_OF[version]), cache_folder(), temporary)
        commands = sys.argv[2:] or ["check", "test-local"]
        make = ["make", f"PYTHON=/usr/bin/python{version}", *commands]
        code = chroot.run(make, folder, _environment())
        if code == 0:
            emptied(temporary)
        return code


def chosen_version(arguments: list[str]) -> str:
    """Return the requested version. Raises ToolError unless it is supported."""
    version = "".join(arguments).removeprefix("python")
    if version not in supported_pythons():
        raise ToolError(f"make test-python PYTHON=...: one of {', '.join(supported_pythons())}")
    return version


def packages_of(suite: Suite) -> list[str]:
    """Return the packages of a suite's chroot: its Pythons and the tools of the tests."""
    versions = [version for version, home in SUITE_OF.items() if home == suite]
    pythons = [f"python{version}{part}" for version in versions for part in ("-dev", "-venv")]
    return [*pythons, *_TOOLS, *_ALSO.get(suite, ())]


def system_of(suite: Suite) -> Path:
    """Return the root of this suite's system in the cache. The first call creates it."""
    packages = packages_of(suite)
    content = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:8]
    folder = cache_folder() / "pythons" / f"{suite.name}-{content}"
    # Only Debian's stable release has a package with the keys of Ubuntu's archive.
    keys = Path("/") if suite.distribution == "Debian" else system_of(TRIXIE)
    with locked(cache_folder() / "locks" / f"suite-{suite.name}", suite.name, report):
        if not folder.exists():
            with step(f"chroot with {suite.distribution} {suite.name}, by debootstrap"):
                make_system(suite, packages, folder, keys)
    return folder


def tracked_files() -> list[str]:
    """Return the files of the working tree that git tracks or does not ignore."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(listing, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def copy_files(source: Path, names: Sequence[str], folder: Path) -> None:
    """Make `folder` a copy of these files of `source`. Its virtual environment and caches stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name not in _KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, folder / name)


def emptied(folder: Path) -> Path:
    """Make `folder` an empty one where every user may write, as in /tmp, and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o1777)
    return folder


def _environment() -> dict[str, str]:
    """Return this process's environment without the variables of its own Python, with pip's package
    indexes.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in _OF_THIS_PYTHON}
    return {**inherited, **uv_environment(), "REGROUP_CACHE": str(SHARED), "HOME": "/root"}


if __name__ == "__main__":
    run_tool(main)
