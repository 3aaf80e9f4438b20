"""The programs that build images: docker, podman or buildah.

podman and buildah keep images in containers/storage. skopeo copies them into an OCI layout without
compression, so the digest of a layer is that of its content. It does not copy a layer that the
layout already has. docker writes an archive instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.debian import ensure_packages
from tools.progress import ToolError, report

# The mount point of the caller's uv cache in builds by buildah or podman. docker has its own cache.
_UV_MOUNT = "/run/uv-cache"


@dataclass(frozen=True)
class Build:
    """One build: the Dockerfile's stage, the image's name, build arguments, and secrets as id ->
    file.
    """

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
        """Return whether the daemon has an image of this name."""
        return _succeeds(["docker", "image", "inspect", name])

    def pull(self, name: str) -> bool:
        """Pull an image from its registry. Returns whether that succeeded."""
        return _succeeds(["docker", "pull", "--quiet", name])

    def export(self, name: str, destination: Path) -> None:
        """Write the image as a docker archive (tar)."""
        _run(["docker", "save", "--output", str(destination), name])

    def prune(self, outdated: Sequence[str]) -> None:
        """Delete the images of these names."""
        for name in outdated:
            _succeeds(["docker", "image", "rm", name])


@dataclass(frozen=True)
class ContainersStorage:
    """podman, or buildah with our own storage in `folder`. Debian's default storage would fill
    /var.
    """

    program: str
    uv_cache: Path
    folder: Path | None = None
    suffix: str = ""

    def build(self, build: Build, context: Path, dockerfile: Path) -> None:
        """Build one stage of `dockerfile` and name it. Unchanged layers come from
        earlier builds.
        """
        self.uv_cache.mkdir(parents=True, exist_ok=True)
        arguments = _build_arguments(build, {**build.arguments, "UV_CACHE_DIR": _UV_MOUNT})
        mounts = ["--volume", f"{self.uv_cache}:{_UV_MOUNT}"]
        options = ["--quiet", "--layers", *mounts, *arguments]
        _run(
            [*self._command(), "build", *options, "--file", str(dockerfile), str(context)],
            self._environment(),
        )

    def has(self, name: str) -> bool:
        """Return whether the storage has an image of this name."""
        return _succeeds(
            [*self._command(), "inspect", "--type", "image", name], self._environment()
        )

    def pull(self, name: str) -> bool:
        """Pull an image from its registry. Returns whether that succeeded."""
        return _succeeds(
            [*self._command(), "pull", "--quiet", f"docker://{name}"], self._environment()
        )

    def export(self, name: str, destination: Path) -> None:
        """Write the image into the OCI layout `destination`. Existing blobs are not copied."""
        options = f"[overlay@{self.folder}/root+{self.folder}/run]" if self.folder else ""
        source = f"containers-storage:{options}{name}"
        _run(
            ["skopeo", "copy", "--quiet", "--preserve-digests", source, f"oci:{destination}:{name}"]
        )

    def prune(self, outdated: Sequence[str]) -> None:
        """Delete the images of these names and the layers that no named image uses."""
        for name in outdated:
            _succeeds([*self._command(), "rmi", name], self._environment())
        if self.folder:  # our own storage: containers there are left by interrupted builds
            _succeeds([*self._command(), "rm", "--all"], self._environment())
            _succeeds([*self._command(), "rmi", "--prune"], self._environment())

    def _command(self) -> list[str]:
        if self.folder is None:
            return [self.program]
        places = ["--root", f"{self.folder}/root", "--runroot", f"{self.folder}/run"]
        return [self.program, *places, "--storage-driver", "overlay"]

    def _environment(self) -> dict[str, str]:
        # Isolation by chroot needs neither an OCI runtime nor a cgroup. It also works inside
        # containers.
        return {"BUILDAH_ISOLATION": "chroot"}


Engine = Docker | ContainersStorage


def choose_engine(cache: Path) -> Engine:
    """Return docker if its daemon answers, else podman, else buildah.

    Installs missing Debian packages. Raises ToolError where it may not.
    """
    if shutil.which("docker") and _succeeds(["docker", "info"]):
        return Docker()
    if shutil.which("podman"):
        ensure_packages(["skopeo"], "to export images built by podman")
        return ContainersStorage("podman", uv_cache=cache / "uv")
    ensure_packages(["buildah", "skopeo"], "to build images without Docker and to export them")
    if os.geteuid() != 0:
        raise ToolError(
            "buildah needs root here: run `sudo -E make image`, or install docker or podman"
        )
    report("    no Docker daemon and no podman: building with buildah")
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
        raise ToolError(
            f"`{' '.join(command)}` failed with exit code "
            f"{result.returncode}:\n{result.stdout.strip()[-4000:]}"
        )


def _succeeds(command: list[str], extra: Mapping[str, str] | None = None) -> bool:
    environment = {**os.environ, **(extra or {})}
    result = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return result.returncode == 0
