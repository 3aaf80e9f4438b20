"""The base image: the Dockerfile's own, or a Debian with the same Python.

debootstrap creates the second where the registry of the first cannot be reached.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.chroots import SUITE_OF, make_system
from tools.images.engine import Build, Engine
from tools.progress import step
from tools.pythons import base_image_of_dockerfile

_DOCKERFILE = 'FROM scratch\nADD rootfs.tar /\nCMD ["bash"]\n'


def base_image(engine: Engine, cache: Path) -> str:
    """Return the name of a base image that `engine` has. Pulls or creates it when it is missing.

    Raises ToolError where neither a registry nor an archive of Debian can be reached.
    """
    preferred, version = base_image_of_dockerfile()
    fallback = f"localhost/regroup-base:{SUITE_OF[version].name}-python{version}"
    if engine.has(fallback):
        return fallback
    if engine.has(preferred) or engine.pull(preferred):
        return preferred
    with (
        step(f"base image {fallback} by debootstrap, because {preferred} cannot be pulled"),
        tempfile.TemporaryDirectory(dir=cache, prefix="base-") as folder,
    ):
        _make_base(engine, fallback, version, Path(folder))
    return fallback


def _make_base(engine: Engine, name: str, version: str, folder: Path) -> None:
    rootfs = folder / "rootfs"
    packages = (f"python{version}-venv", "ca-certificates")
    make_system(SUITE_OF[version], packages, rootfs, keys=Path("/"))
    python = rootfs / "usr" / "bin" / "python3"
    if not python.exists():  # the package python3 would provide the link, but is not installed
        python.symlink_to(f"python{version}")
    subprocess.run(
        ["tar", "--directory", str(rootfs), "--create", "--file", str(folder / "rootfs.tar"), "."],
        check=True,
    )
    shutil.rmtree(rootfs)
    (folder / "Dockerfile").write_text(_DOCKERFILE)
    engine.build(Build(target="", name=name), folder, folder / "Dockerfile")
