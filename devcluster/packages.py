"""Debian packages that devcluster needs, installed when they are missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from devcluster.errors import UnsupportedMachineError
from devcluster.processes import run
from devcluster.progress import Say, step

PLUGINS = Path("/usr/lib/cni")
NETWORK = {"ip": "iproute2", "nft": "nftables", "nsenter": "util-linux"}
"""For nodes that are network namespaces."""
NEEDED = {
    **NETWORK,
    "mount": "mount",
    "runc": "runc",
    str(PLUGINS / "ptp"): "containernetworking-plugins",
}
BUSYBOX = {"/bin/busybox": "busybox-static"}
"""For images of tests: one static program that is a shell and much else."""


def missing(needed: dict[str, str]) -> list[str]:
    """The packages of those programs that are not there."""
    return sorted({package for program, package in needed.items() if shutil.which(program) is None})


def ensure(needed: dict[str, str], say: Say) -> None:
    """Install what is missing (as root on Debian), else raise UnsupportedMachineError with what to install."""
    packages = missing(needed)
    if not packages:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise UnsupportedMachineError(f"Missing programs: install the packages {' '.join(packages)} and try again.")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    patient = ("-o", "DPkg::Lock::Timeout=300")  # another installation may be at work
    with step(say, f"installed the Debian packages {' '.join(packages)}"):
        run(["apt-get", "update", "-qq"], environment=quiet)
        run(["apt-get", *patient, "install", "-qq", "--yes", "--no-install-recommends", *packages], environment=quiet)
