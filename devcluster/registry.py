"""Which clusters there are on this machine: one small file each, gone after a reboot, as the clusters are.

They are machine-wide because names and addresses are.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from devcluster import caches, network
from devcluster.errors import DevclusterError
from devcluster.progress import Say

FOLDER = Path("/run/regroup-devcluster")
NAME = re.compile(r"[a-z]([-a-z0-9]{0,10}[a-z0-9])?")
"""Links are called rg-<name> and the kernel allows them 15 characters."""
LONGEST_SOCKET = "n15/kubelet/device-plugins/kubelet.sock"


@dataclass(frozen=True)
class Record:
    """What must be known to find a cluster again."""

    name: str
    nodes: int
    block: int
    state: str
    """Folder with everything that the cluster writes."""
    complete: bool = False
    """Whether it has been up once: all its nodes were Ready."""
    images: tuple[str, ...] = ()
    """Manifest digests of the loaded images: their layers must stay."""


def validated_name(name: str) -> str:
    """`name`, or a DevclusterError that says what is wrong with it."""
    if not NAME.fullmatch(name):
        raise DevclusterError(
            f"The cluster name {name!r} does not do: at most 12 of a-z, 0-9 and '-', beginning with a letter."
        )
    longest = caches.cluster_state(name) / LONGEST_SOCKET
    if len(str(longest)) >= 108:
        raise DevclusterError(f"The socket {longest} would be longer than 107 characters: shorten REGROUP_CACHE.")
    return name


def load(name: str) -> Record | None:
    """The record of a cluster, or None."""
    try:
        values = json.loads((FOLDER / f"{name}.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return Record(**{**values, "images": tuple(values["images"])})


def load_all() -> list[Record]:
    """The records of all clusters on this machine."""
    names = sorted(path.stem for path in FOLDER.glob("*.json"))
    return [record for record in map(load, names) if record is not None]


def save(record: Record) -> None:
    """Write a record, replacing that of the same name at once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    temporary = FOLDER / f"{record.name}.tmp"
    temporary.write_text(json.dumps(asdict(record)))
    temporary.rename(FOLDER / f"{record.name}.json")


def claim(name: str, nodes: int) -> Record:
    """Make the record of a new cluster, with a block of addresses that no other has."""
    with locked("addresses"):
        block = network.free_block([record.block for record in load_all()], network.routed_networks())
        record = Record(name, nodes, block.index, str(caches.cluster_state(name)))
        save(record)
    return record


def add_image(name: str, digest: str) -> None:
    """Note that a cluster uses an image."""
    with locked("images"):
        record = load(name)
        if record is not None and digest not in record.images:
            save(replace(record, images=(*record.images, digest)))


def forget(name: str) -> None:
    """Remove the record of a cluster."""
    (FOLDER / f"{name}.json").unlink(missing_ok=True)


@contextmanager
def locked(what: str, say: Say | None = None) -> Iterator[None]:
    """Hold a machine-wide lock; `say` tells the user when another process holds it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{what}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if say is not None:
                say(f"another process works on {what}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
