"""The programs that devcluster needs, and the Debian packages that they come from."""

from __future__ import annotations

import shutil
from pathlib import Path

from devcluster.errors import UnsupportedMachineError
from devcluster.progress import Report, step
from tools.debian import install_packages
from tools.progress import ToolError

PLUGINS = Path("/usr/lib/cni")
NETWORK = {"ip": "iproute2", "nft": "nftables", "nsenter": "util-linux"}
"""The programs for nodes in network namespaces."""
NEEDED = {
    **NETWORK,
    "mount": "mount",
    "runc": "runc",
    str(PLUGINS / "ptp"): "containernetworking-plugins",
}


def missing(needed: dict[str, str]) -> list[str]:
    """The Debian packages of the programs, or files by their path, that are missing."""
    return sorted({package for program, package in needed.items() if not _is_here(program)})


def _is_here(program: str) -> bool:
    return shutil.which(program) is not None or Path(program).is_file()


def ensure(needed: dict[str, str], report: Report) -> None:
    """Install the packages of the programs that are missing.

    Where that fails, raises UnsupportedMachineError with the packages to install.
    """
    packages = missing(needed)
    if not packages:
        return
    try:
        with step(report, f"installed the Debian packages {' '.join(packages)}"):
            install_packages(packages, "programs of a cluster")
    except ToolError as refused:
        raise UnsupportedMachineError(f"Missing programs: {refused}") from refused
