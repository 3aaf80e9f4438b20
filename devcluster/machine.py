"""The machine below a cluster: whether it can carry one, and what it must be told first."""

from __future__ import annotations

import os
from pathlib import Path

from devcluster import cgroups, network, packages
from devcluster.errors import DevclusterError, UnsupportedMachineError


def preflight() -> None:
    """Raise UnsupportedMachineError, with what to do, unless this machine can carry a cluster."""
    if os.geteuid() != 0:
        raise UnsupportedMachineError("devcluster makes network namespaces and mounts: run it as root (`sudo -E ...`).")
    cgroups.check()
    if packages.missing({"ip": "iproute2", "unshare": "util-linux"}):
        return  # to be installed
    try:
        network.check()
    except DevclusterError as refused:
        raise UnsupportedMachineError(
            f"Network namespaces can't be made here ({refused}): "
            "devcluster needs a machine, or a privileged container, with CAP_NET_ADMIN and CAP_SYS_ADMIN."
        ) from refused


def raise_inotify_limits() -> None:
    """Every kubelet and containerd watches many files; the kernel's default is meant for one machine, not for five."""
    for name, least in (("max_user_instances", 8192), ("max_user_watches", 524288)):
        setting = Path("/proc/sys/fs/inotify") / name
        if int(setting.read_text()) < least:
            setting.write_text(str(least))
