"""Builds the cluster's programs from the pinned Go module, once per set of versions.

A build writes to a temporary folder and renames it at the end. Programs with unchanged inputs are
linked from an earlier build. Go's own build cache would take 4 GB, so it is deleted after a
complete build.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster import caches, registry, versions
from devcluster.errors import DevclusterError, UnsupportedMachineError
from devcluster.processes import run
from devcluster.progress import Report, step
from tools.cache import cache_folder
from tools.locks import locked

TAGS = "no_btrfs,no_zfs,no_devmapper"
KEEP = 3
"""The number of builds to keep."""
GO_VERSION = re.compile(r"go(\d+)\.(\d+)")


@dataclass(frozen=True)
class Program:
    """One program: its file name and its Go package. Relative packages are our own."""

    name: str
    package: str


PROGRAMS = (
    Program("etcd", "go.etcd.io/etcd/server/v3"),
    Program("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    Program("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    Program("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    Program("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    Program("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    Program("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    Program("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
    Program(
        "containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
    ),
    Program("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
    Program("helm", "helm.sh/helm/v3/cmd/helm"),
    Program("coredns", "./coredns"),
    Program("layers", "./layers"),
    Program("pause", "./pause"),
)


@dataclass(frozen=True)
class ProgramApart:
    """A program from a Go module of its own, `go/<name>`, which needs other versions of what the
    cluster's programs share.
    """

    name: str
    package: str

    @property
    def module(self) -> Path:
        """The folder of the module."""
        return versions.GO_MODULE / self.name

    def file(self) -> Path:
        """The program after `build`."""
        sources = [self.module / "go.mod", self.module / "go.sum", *self.module.glob("*.go")]
        inputs = b"".join(source.read_bytes() for source in sorted(sources))
        return caches.devcluster() / f"{self.name}-{hashlib.sha256(inputs).hexdigest()[:12]}"

    def build(self, report: Report) -> Path:
        """Build it unless it is there, and return its file. The first time takes minutes."""
        target = self.file()
        caches.devcluster().mkdir(parents=True, exist_ok=True)
        with locked(target.parent / "binaries.lock", "the programs", report):
            if not target.exists():
                report(f"building {self.name} from Go source (2 to 5 minutes on 2 cores)")
                with step(report, f"built {self.name}"):
                    self._compile(target)
                    clean()
        return target

    def _compile(self, target: Path) -> None:
        check_go((self.module / "go.mod").read_text())
        partial = target.with_suffix(".tmp")
        _build(self.module, self.package, partial, "-ldflags", "-s -w")
        partial.rename(target)


def linker_flags(go_mod: str) -> str:
    """Linker flags that set the versions of the programs, as their release builds do."""
    major, minor, _ = versions.KUBERNETES_VERSION.split(".")
    base = "k8s.io/component-base/version"
    helm = "helm.sh/helm/v3"
    values = {
        f"{base}.gitVersion": f"v{versions.KUBERNETES_VERSION}",
        f"{base}.gitMajor": major,
        f"{base}.gitMinor": minor,
        f"{base}.gitTreeState": "clean",
        f"{helm}/internal/version.version": versions.required(go_mod, "helm.sh/helm/v3"),
        f"{helm}/pkg/chartutil.k8sVersionMajor": major,
        f"{helm}/pkg/chartutil.k8sVersionMinor": minor,
        f"{helm}/pkg/lint/rules.k8sVersionMajor": major,
        f"{helm}/pkg/lint/rules.k8sVersionMinor": minor,
        "github.com/containerd/containerd/v2/version.Version": versions.required(
            go_mod, "github.com/containerd/containerd/v2"
        ),
    }
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())])


def program_keys(module: Path) -> dict[str, str]:
    """For every program, a digest of its build's inputs. Go's own version is not included."""
    shared = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        shared.update((module / name).read_bytes())
    shared.update(
        f"{TAGS} {linker_flags((module / 'go.mod').read_text())} {platform.machine()}".encode()
    )
    keys: dict[str, str] = {}
    for program in PROGRAMS:
        digest = shared.copy()
        digest.update(program.package.encode())
        if program.package.startswith("./"):
            for source in sorted((module / program.package).glob("*.go")):
                digest.update(source.read_bytes())
        keys[program.name] = digest.hexdigest()
    return keys


def folder() -> Path:
    """The folder of the programs after `build`."""
    keys = json.dumps(program_keys(versions.GO_MODULE), sort_keys=True)
    return caches.devcluster() / f"bin-{hashlib.sha256(keys.encode()).hexdigest()[:12]}"


def build(report: Report) -> Path:
    """Build all missing programs and return their folder. Takes seconds when nothing changed."""
    target = folder()
    if target.is_dir():
        return target
    go_mod = (versions.GO_MODULE / "go.mod").read_text()
    versions.check_pinned(go_mod)
    check_go(go_mod)
    caches.devcluster().mkdir(parents=True, exist_ok=True)
    with locked(target.parent / "binaries.lock", "the programs", report):
        if not target.is_dir():
            _build_all(target, linker_flags(go_mod), report)
    return target


def _build_all(target: Path, flags: str, report: Report) -> None:
    for leftover in target.parent.glob(
        "bin-*.tmp"
    ):  # left by an interrupted build: we hold the lock
        shutil.rmtree(leftover)
    temporary = target.with_name(f"{target.name}.tmp")
    temporary.mkdir()
    keys = program_keys(versions.GO_MODULE)
    earlier = _built_before(target.parent)
    to_build = [program for program in PROGRAMS if keys[program.name] not in earlier]
    for program in PROGRAMS:
        if program not in to_build:
            os.link(earlier[keys[program.name]], temporary / program.name)
    if to_build:
        report(
            f"building {len(to_build)} programs from Go source (4 to 8 minutes for all on 2 cores)"
        )
    for number, program in enumerate(to_build, 1):
        with step(report, f"built {program.name} ({number} of {len(to_build)})"):
            options = ("-tags", TAGS, "-ldflags", flags)
            _build(versions.GO_MODULE, program.package, temporary / program.name, *options)
    (temporary / "keys.json").write_text(json.dumps(keys, indent=1))
    temporary.rename(target)
    _prune(target)
    if len(to_build) == len(PROGRAMS):
        with step(report, "deleted Go's build cache (the programs stay)"):
            clean()


def _prune(target: Path) -> None:
    """Delete old builds. The newest and those of running clusters stay."""
    used = {record.bin for record in registry.load_all()} | {str(target)}
    newest_first = sorted(
        target.parent.glob("bin-*"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    for folder in newest_first[KEEP:]:
        if str(folder) not in used:
            shutil.rmtree(folder)


def _built_before(parent: Path) -> dict[str, Path]:
    """Programs in the folders of earlier builds, by key."""
    found: dict[str, Path] = {}
    for listing in parent.glob("bin-*/keys.json"):
        keys: Mapping[str, str] = json.loads(listing.read_text())
        found.update(
            {
                key: listing.with_name(name)
                for name, key in keys.items()
                if listing.with_name(name).exists()
            }
        )
    return found


def _build(module: Path, package: str, target: Path, *options: str) -> None:
    command = ("go", "-C", module, "build", "-trimpath", "-buildvcs=false")
    run([*command, *options, "-o", target, package], environment=go_environment())


def clean() -> None:
    """Delete Go's build cache. Programs stay. The caller holds the lock of the programs."""
    run(["go", "clean", "-cache"], environment=go_environment())


def go_environment() -> dict[str, str]:
    """Environment for static programs, verified modules and caches in our own folder."""
    go = cache_folder() / "go"
    return {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -modcacherw",
        "GOMODCACHE": str(go / "mod"),
        "GOCACHE": str(go / "build"),
    }


def module_sources(path: str, version: str, checksum: str) -> Path:
    """The folder of a released Go module in the cache, downloaded when it is missing; `checksum` is
    that of go.sum. Raises DevclusterError.
    """
    with tempfile.TemporaryDirectory() as nowhere:
        command = ("go", "-C", nowhere, "mod", "download", "-json", f"{path}@{version}")
        found = json.loads(run(command, environment=go_environment()))
    if found["Sum"] != checksum:
        raise DevclusterError(
            f"{path} {version} has the checksum {found['Sum']}, expected {checksum}: do not use it."
        )
    return Path(found["Dir"])


def check_go(go_mod: str) -> None:
    """Raise UnsupportedMachineError unless the installed Go can build the module."""
    wanted = re.search(r"^go (\S+)$", go_mod, re.MULTILINE)
    advice = (
        f"install Go {wanted[1] if wanted else ''} or newer (https://go.dev/dl) and put `go` on "
        "the PATH."
    )
    if shutil.which("go") is None:
        raise UnsupportedMachineError(f"Go is needed once, to build Kubernetes: {advice}")
    have = GO_VERSION.search(run(["go", "env", "GOVERSION"]))
    if have is None or (int(have[1]), int(have[2])) < (
        1,
        21,
    ):  # newer versions fetch the required toolchain
        raise UnsupportedMachineError(f"The Go on the PATH is too old: {advice}")


def pin() -> None:
    """Make the Go module require `KUBERNETES_VERSION` and tidy it."""
    path = versions.GO_MODULE / "go.mod"
    path.write_text(versions.pin_kubernetes(path.read_text(), versions.KUBERNETES_VERSION))
    run(
        ["go", "-C", versions.GO_MODULE, "mod", "tidy"],
        environment={**go_environment(), "GOFLAGS": ""},
    )
