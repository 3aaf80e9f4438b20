"""The clusters of this machine: one small file each in /run, which a reboot deletes like the
clusters.

The registry is machine-wide because names and addresses are.
"""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from devcluster import caches, network
from devcluster.errors import DevclusterError
from devcluster.progress import Report, silent
from tools.locks import locked

FOLDER = Path("/run/regroup-devcluster")
NAME = re.compile(r"[a-z]([-a-z0-9]{0,10}[a-z0-9])?")
"""Links are named rg-<name>, and the kernel allows 15 characters."""
LONGEST_SOCKET = "n15/kubelet/device-plugins/kubelet.sock"


@dataclass(frozen=True)
class Record:
    """The data by which a cluster is found again."""

    name: str
    nodes: int
    block: int
    state: str
    """Folder of all files of the cluster."""
    bin: str
    """Folder of the cluster's programs."""
    complete: bool = False
    """Whether all its nodes have been Ready once."""
    images: tuple[str, ...] = ()
    """Manifest digests of the loaded images. Their layers must stay."""


def validated_name(name: str) -> str:
    """Return `name`. Raises DevclusterError when it is not a valid name of a cluster."""
    if not NAME.fullmatch(name):
        raise DevclusterError(
            f"The cluster name {name!r} is not valid: at most 12 of a-z, 0-9 and '-', starting "
            "with a letter."
        )
    longest = caches.cluster_state(name) / LONGEST_SOCKET
    if len(str(longest)) >= 108:
        raise DevclusterError(
            f"The socket {longest} would be longer than 107 characters: shorten REGROUP_CACHE."
        )
    return name


def load(name: str) -> Record | None:
    """The record of a cluster, or None."""
    try:
        values = json.loads((FOLDER / f"{name}.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return Record(**{"bin": "", **values, "images": tuple(values["images"])})


def load_all() -> list[Record]:
    """The records of all clusters on this machine."""
    names = sorted(path.stem for path in FOLDER.glob("*.json"))
    return [record for record in map(load, names) if record is not None]


def save(record: Record) -> None:
    """Write a record atomically."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    temporary = FOLDER / f"{record.name}.tmp"
    temporary.write_text(json.dumps(asdict(record)))
    temporary.rename(FOLDER / f"{record.name}.json")


def reserve(name: str, nodes: int, bin_folder: Path) -> Record:
    """Create the record of a new cluster, with a free block of addresses."""
    with locked(FOLDER / "addresses.lock", "the addresses"):
        block = network.free_block(
            [record.block for record in load_all()], network.routed_networks()
        )
        record = Record(name, nodes, block.index, str(caches.cluster_state(name)), str(bin_folder))
        save(record)
    return record


def add_image(name: str, digest: str) -> None:
    """Record that a cluster uses an image."""
    with locked(FOLDER / "records.lock", "the records"):
        record = load(name)
        if record is not None and digest not in record.images:
            save(replace(record, images=(*record.images, digest)))


def mark_complete(name: str) -> Record:
    """Record that a cluster has been up, and return its record."""
    with locked(FOLDER / "records.lock", "the records"):
        record = load(name)
        if record is None:
            raise DevclusterError(f"Cluster {name} was removed while it started.")
        record = replace(record, complete=True)
        save(record)
    return record


def lock_cluster(name: str, report: Report = silent) -> AbstractContextManager[None]:
    """Lock a cluster against other processes that start or remove it."""
    return locked(FOLDER / f"cluster-{name}.lock", f"cluster {name}", report)


def forget(name: str) -> None:
    """Remove the record of a cluster."""
    (FOLDER / f"{name}.json").unlink(missing_ok=True)
