"""Volumes with a size that the kernel enforces, to test full disks."""

from __future__ import annotations

from pathlib import Path

from devcluster.kubeapi import Json
from devcluster.processes import run
from devcluster.provisioner import make_folder

UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def bytes_of(quantity: str) -> int:
    """The bytes of a quantity such as 64Mi. Raises ValueError for anything else."""
    number, unit = quantity[:-2], quantity[-2:]
    if unit not in UNITS or not number.isdigit() or int(number) == 0:
        raise ValueError(
            f"size {quantity!r}: expected a whole number with Ki, Mi or Gi, such as 64Mi"
        )
    return int(number) * UNITS[unit]


def limited(name: str, size: str, folder: Path) -> Json:
    """A volume in memory of at most `size`. A claim binds to it by `storageClassName: <name>`.

    Mounts the memory at `folder`, writable for every user.
    """
    make_folder(folder)
    run(
        [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={bytes_of(size)},mode=1777",
            f"regroup-{name}",
            folder,
        ]
    )
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": name,
            "hostPath": {"path": str(folder), "type": "Directory"},
        },
    }
