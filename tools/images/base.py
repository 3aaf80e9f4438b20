"""The base image: the Dockerfile's own where its registry can be reached, else a Debian made by debootstrap."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.debian import ensure_packages
from tools.images.engine import Build, Engine
from tools.progress import ToolError, step

PREFERRED = "python:3.12-slim-bookworm"
_SUITE = "bookworm"
FALLBACK = f"localhost/regroup-base:{_SUITE}"
_UNNEEDED = ("var/lib/apt/lists", "var/cache/apt", "var/log", "usr/share/doc", "usr/share/man", "usr/share/locale")
_DOCKERFILE = 'FROM scratch\nADD rootfs.tar /\nCMD ["bash"]\n'


def base_image(engine: Engine, cache: Path) -> str:
    """Return the name of a base image that `engine` has or can have; made once, then found again."""
    if engine.has(FALLBACK):
        return FALLBACK
    if engine.has(PREFERRED) or engine.pull(PREFERRED):
        return PREFERRED
    ensure_packages(["debootstrap"], f"to make a base image, since the registry of {PREFERRED} can't be reached")
    with (
        step(f"base image {FALLBACK}: Debian with its own Python, by debootstrap"),
        tempfile.TemporaryDirectory(dir=cache, prefix="base-") as folder,
    ):
        _make_base(engine, Path(folder))
    return FALLBACK


def _make_base(engine: Engine, folder: Path) -> None:
    rootfs = folder / "rootfs"
    packages = "python3,python3-venv,ca-certificates"
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", _SUITE, str(rootfs), *_mirror()]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode != 0:
        raise ToolError(f"debootstrap failed: {result.stdout.strip()[-800:]}\nset BASE_IMAGE to an image you have")
    for name in _UNNEEDED:
        shutil.rmtree(rootfs / name, ignore_errors=True)
        (rootfs / name).mkdir(parents=True)
    subprocess.run(
        ["tar", "--directory", str(rootfs), "--create", "--file", str(folder / "rootfs.tar"), "."], check=True
    )
    shutil.rmtree(rootfs)
    (folder / "Dockerfile").write_text(_DOCKERFILE)
    engine.build(Build(target="", name=FALLBACK), folder, folder / "Dockerfile")


def _mirror() -> list[str]:
    """Return the archive that this machine's apt uses for the suite; nothing means debootstrap's own default."""
    query = ["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Codename: {_SUITE}", "Created-By: Packages"]
    shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return shown.split()[:1]
