"""Builds the programs that the benchmark compares with or simulates nodes by, from Go modules.

Each module is taken as it was released: its own go.sum has the checksums of what it depends on, and
the module's own checksum stands here.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from devcluster import binaries, versions
from devcluster.processes import run
from tools.cache import cache_folder
from tools.locks import locked

Report = Callable[[str], None]


@dataclass(frozen=True)
class Module:
    """A Go module, of which one program is built."""

    name: str
    """Of the program."""
    path: str
    version: str
    checksum: str
    """As go.sum has it."""
    package: str

    @property
    def key(self) -> str:
        """Name of the folder of its builds."""
        digest = hashlib.sha256(f"{self.checksum} {self.package}".encode()).hexdigest()[:12]
        return f"{self.name}-{self.version}-{digest}"


KWOK = Module(
    "kwok",
    "sigs.k8s.io/kwok",
    "v0.8.0",
    "h1:OTIOTwgROqPMovcTwxICx2eYQ4AwLpSx5EpjbDKF4SQ=",
    "./cmd/kwok",
)
JOBSET = Module(
    "jobset",
    "sigs.k8s.io/jobset",
    "v0.12.0",
    "h1:YYPuV0px8Ongq/RXmJg6V0w2UC67aiR+rCMD06vhQQQ=",
    ".",
)
TRAINER = Module(
    "trainer",
    "github.com/kubeflow/trainer/v2",
    "v2.3.0",
    "h1:Je+e7zvTLzB4qW09J1fB7pZrqvPtWuGng2NqdN5p5QU=",
    "./cmd/trainer-controller-manager",
)


@dataclass(frozen=True)
class Built:
    """A program, and the sources of its module: the definitions and settings of a release."""

    program: Path
    sources: Path


def build(module: Module, report: Report) -> Built:
    """Build what is missing, which takes up to four minutes. Raises DevclusterError."""
    target = cache_folder() / "bench" / module.key
    with locked(target.with_suffix(".lock"), module.name, report):
        if not target.is_dir():
            report(f"building {module.name} {module.version} from {module.path}")
            _build(module, target)
    return Built(target / module.name, target / "sources")


def _build(module: Module, target: Path) -> None:
    binaries.check_go((versions.GO_MODULE / "go.mod").read_text())
    environment = {**binaries.go_environment(), "GOFLAGS": "-mod=mod -modcacherw"}
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}.") as scratch:
        made = Path(scratch) / "made"
        sources = binaries.module_sources(module.path, module.version, module.checksum)
        # The module cache is read only, and a build may complete go.sum.
        shutil.copytree(sources, made / "sources", copy_function=_copy_writable)
        command = ("go", "-C", made / "sources", "build", "-trimpath", "-buildvcs=false")
        flags = ("-ldflags", "-s -w", "-o", made / module.name, module.package)
        run([*command, *flags], environment=environment)
        made.rename(target)


def _copy_writable(source: str, target: str) -> str:
    shutil.copyfile(source, target)
    Path(target).chmod(0o755)
    return target
