"""The machine that runs a cluster: whether it can, and the kernel settings that it needs."""

from __future__ import annotations

import os
from pathlib import Path

from devcluster import cgroups, network, packages
from devcluster.errors import DevclusterError, UnsupportedMachineError


def preflight() -> None:
    """Raise UnsupportedMachineError, with advice, unless this machine can run a cluster."""
    if os.geteuid() != 0:
        raise UnsupportedMachineError(
            "devcluster creates network namespaces and mounts: run it as root (`sudo -E ...`)."
        )
    cgroups.check()
    if packages.missing({"ip": "iproute2", "unshare": "util-linux"}):
        return  # `packages.ensure` installs them later
    try:
        network.check()
    except DevclusterError as refused:
        raise UnsupportedMachineError(
            f"Network namespaces cannot be created here ({refused}): "
            "devcluster needs a machine, or a privileged container, with CAP_NET_ADMIN and "
            "CAP_SYS_ADMIN."
        ) from refused


def raise_inotify_limits() -> None:
    """Raise the kernel's inotify limits. Every kubelet and containerd watches many files, and the
    defaults are meant for one of each.
    """
    for name, least in (("max_user_instances", 8192), ("max_user_watches", 524288)):
        setting = Path("/proc/sys/fs/inotify") / name
        if int(setting.read_text()) < least:
            setting.write_text(str(least))
