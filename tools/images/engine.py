"""The programs that can build an image: docker, podman or buildah, whichever is there.

podman and buildah keep images in containers/storage, from which skopeo copies them into an OCI layout without
compressing: the digest of a layer is then that of its content, and a layer that the layout already has is not copied.
docker writes an archive instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.debian import ensure_packages
from tools.progress import ToolError, say

# Where the caller's uv cache is mounted while buildah or podman build; docker has a cache of its own.
_UV_MOUNT = "/run/uv-cache"


@dataclass(frozen=True)
class Build:
    """One build: the stage of the Dockerfile, the image's name, its arguments, and secrets as id -> file."""

    target: str
    name: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Docker:
    """The Docker daemon, with BuildKit."""

    suffix: str = ".tar"

    def build(self, build: Build, context: Path, dockerfile: Path) -> None:
        """Build one stage of `dockerfile` and name it."""
        arguments = _build_arguments(build, build.arguments)
        command = ["docker", "build", *arguments, "--file", str(dockerfile), str(context)]
        _run(command, {"DOCKER_BUILDKIT": "1"})

    def has(self, name: str) -> bool:
        """Tell whether an image of that name is in the daemon."""
        return _succeeds(["docker", "image", "inspect", name])

    def pull(self, name: str) -> bool:
        """Fetch an image from its registry; False where that fails."""
        return _succeeds(["docker", "pull", "--quiet", name])

    def export(self, name: str, destination: Path) -> None:
        """Write the image as a docker archive, a tar file."""
        _run(["docker", "save", "--output", str(destination), name])

    def prune(self, outdated: Sequence[str]) -> None:
        """Forget the images of these names."""
        for name in outdated:
            _succeeds(["docker", "image", "rm", name])


@dataclass(frozen=True)
class ContainersStorage:
    """podman, or buildah with a storage of our own (`folder`), since Debian's default would fill /var."""

    program: str
    uv_cache: Path
    folder: Path | None = None
    suffix: str = ""

    def build(self, build: Build, context: Path, dockerfile: Path) -> None:
        """Build one stage of `dockerfile` and name it; unchanged stages come from the layers built before."""
        self.uv_cache.mkdir(parents=True, exist_ok=True)
        arguments = _build_arguments(build, {**build.arguments, "UV_CACHE_DIR": _UV_MOUNT})
        mounts = ["--volume", f"{self.uv_cache}:{_UV_MOUNT}"]
        options = ["--quiet", "--layers", *mounts, *arguments]
        _run([*self._command(), "build", *options, "--file", str(dockerfile), str(context)], self._environment())

    def has(self, name: str) -> bool:
        """Tell whether an image of that name is in the storage."""
        return _succeeds([*self._command(), "inspect", "--type", "image", name], self._environment())

    def pull(self, name: str) -> bool:
        """Fetch an image from its registry; False where that fails."""
        return _succeeds([*self._command(), "pull", "--quiet", f"docker://{name}"], self._environment())

    def export(self, name: str, destination: Path) -> None:
        """Write the image into the OCI layout `destination`; blobs that lie there already are not copied."""
        options = f"[overlay@{self.folder}/root+{self.folder}/run]" if self.folder else ""
        source = f"containers-storage:{options}{name}"
        _run(["skopeo", "copy", "--quiet", "--preserve-digests", source, f"oci:{destination}:{name}"])

    def prune(self, outdated: Sequence[str]) -> None:
        """Forget the images of these names, and layers that nothing named is made of."""
        for name in outdated:
            _succeeds([*self._command(), "rmi", name], self._environment())
        if self.folder:  # of ours alone: what stands there was left by a build that was interrupted
            _succeeds([*self._command(), "rm", "--all"], self._environment())
            _succeeds([*self._command(), "rmi", "--prune"], self._environment())

    def _command(self) -> list[str]:
        if self.folder is None:
            return [self.program]
        places = ["--root", f"{self.folder}/root", "--runroot", f"{self.folder}/run"]
        return [self.program, *places, "--storage-driver", "overlay"]

    def _environment(self) -> dict[str, str]:
        # chroot needs no OCI runtime and no cgroup of its own: it works inside containers and small machines too.
        return {"BUILDAH_ISOLATION": "chroot"}


Engine = Docker | ContainersStorage


def choose_engine(cache: Path) -> Engine:
    """Return docker if its daemon answers, else podman, else buildah, which is installed if we may."""
    if shutil.which("docker") and _succeeds(["docker", "info"]):
        return Docker()
    if shutil.which("podman"):
        ensure_packages(["skopeo"], "to export images built by podman")
        return ContainersStorage("podman", uv_cache=cache / "uv")
    ensure_packages(["buildah", "skopeo"], "to build images without Docker and to export them")
    if os.geteuid() != 0:
        raise ToolError("buildah needs root here: run `sudo -E make image`, or install docker or podman")
    say("    no Docker daemon and no podman: building with buildah")
    return ContainersStorage("buildah", uv_cache=cache / "uv", folder=cache / "buildah")


def _build_arguments(build: Build, arguments: Mapping[str, str]) -> list[str]:
    options = ["--target", build.target] if build.target else []
    options += ["--tag", build.name]
    for name, value in arguments.items():
        options += ["--build-arg", f"{name}={value}"]
    for name, file in build.secrets.items():
        options += ["--secret", f"id={name},src={file}"]
    return options


def _run(command: list[str], extra: Mapping[str, str] | None = None) -> None:
    result = subprocess.run(
        command,
        env={**os.environ, **(extra or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise ToolError(f"`{' '.join(command)}` ended with {result.returncode}:\n{result.stdout.strip()[-4000:]}")


def _succeeds(command: list[str], extra: Mapping[str, str] | None = None) -> bool:
    environment = {**os.environ, **(extra or {})}
    result = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return result.returncode == 0
