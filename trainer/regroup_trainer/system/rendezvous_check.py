"""Says at once what is wrong with a program's own rendezvous, where ranks would wait for each other
in vain.

A program that takes LOCAL_RANK for its rank, or sets MASTER_ADDR to localhost, works on one
machine. On several, some ranks never come. It works in images without Regroup too: see
`protocol/torchrun_programs.py`.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
_LISTENS = "0A"
"""State of a listening socket in /proc/net/tcp."""


@dataclass(frozen=True)
class RankPlace:
    """What the rendezvous of a program has to say of this rank."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    hosts: int
    """The number of machines, or pods, of the job."""
    address: str = ""
    """Where rank 0 lets the others meet, as it was given to the program; empty: not known."""
    port: int = 0


def watch_rendezvous(place: RankPlace, error: type[Exception]) -> None:
    """From now on a rendezvous of this process that cannot succeed raises `error`. The process has
    imported torch.distributed.
    """
    handlers = vars(sys.modules["torch.distributed.rendezvous"])["_rendezvous_handlers"]
    for scheme in ("env", "tcp"):
        handlers[scheme] = _checked(handlers[scheme], place, error)


def refuse_spawn(place: RankPlace, error: type[Exception]) -> None:
    """From now on torch's way to start ranks raises `error`, where there are several already. The
    process has imported torch.multiprocessing.
    """

    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise error(
            "torch.multiprocessing.spawn starts ranks, which the job does here: call the function "
            "itself once, with RANK and WORLD_SIZE of the environment; for processes that are no "
            "ranks use Python's multiprocessing"
        )

    if place.world_size > 1:
        for name in ("torch.multiprocessing", "torch.multiprocessing.spawn"):
            vars(sys.modules[name])["start_processes"] = refuse
        vars(sys.modules["torch.multiprocessing"])["spawn"] = refuse


def problem(url: str, environment: Mapping[str, str], place: RankPlace) -> str:
    """What is wrong with a rendezvous; empty when nothing is known to be.

    `url` is as c10d's handlers get it: env://?rank=0, tcp://host:port?rank=0&world_size=2.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""  # c10d refuses it
    given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    rank = _whole(given.get("rank", environment.get("RANK", "")))
    size = _whole(given.get("world_size", environment.get("WORLD_SIZE", "")))
    if rank is None or size is None:
        return ""  # c10d refuses it
    if (rank, size) == (place.local_rank, place.local_world_size):
        return ""  # a group of this worker's ranks alone
    if size == 1 or (parts.scheme == "tcp" and _is_elsewhere(parts, size, environment, place)):
        return ""  # a group of its own, with others than the job's ranks or with none
    if rank != place.rank:
        same = rank == place.local_rank
        which = "LOCAL_RANK, its number on this worker" if same else "none of its variables"
        return (
            f"init_process_group got rank {rank}, which is {which}: this process is rank "
            f"{place.rank} of {place.world_size}: leave rank and world_size out, or take "
            'rank=int(os.environ["RANK"])'
        )
    if size != place.world_size:
        return (
            f"init_process_group got world_size {size}, and there are {place.world_size} ranks: "
            'leave rank and world_size out, or take world_size=int(os.environ["WORLD_SIZE"])'
        )
    host = (parts.hostname or "") if parts.scheme == "tcp" else environment.get("MASTER_ADDR", "")
    if place.hosts > 1 and is_loopback(host):
        return (
            f"the address to meet at is {host[:100]}, which is another machine on each of the "
            f"{place.hosts} workers: leave MASTER_ADDR and MASTER_PORT as they are set"
        )
    return ""


def _whole(text: str) -> int | None:
    """A number as c10d reads it; None where it reads none."""
    try:
        return int(text)
    except ValueError:
        return None


def _is_elsewhere(
    parts: SplitResult, size: int, environment: Mapping[str, str], place: RankPlace
) -> bool:
    here = f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"
    return size != place.world_size and parts.netloc != here


def is_address_in_use(error: Exception) -> bool:
    """Whether the error is that of a listener whose address is in use."""
    return "address already in use" in str(error).lower()


def is_taken(error: Exception, port: int) -> bool:
    """Whether an address in use is that of this port, and another process listens there."""
    return f"port: {port}," in str(error) and not _listens(port)


def _listens(port: int) -> bool:
    """Whether this process has a listening TCP socket on that port."""
    own = {_link(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with open(table) as lines:  # noqa: PTH123
            rows = [line.split() for line in list(lines)[1:]]
        for row in rows:
            if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port:
                return f"socket:[{row[9]}]" in own
    return False


def _link(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    except OSError:
        return ""


def _checked(
    handler: Callable[..., Any], place: RankPlace, error: type[Exception]
) -> Callable[..., Any]:
    def checked(url: str, *arguments: Any, **options: Any) -> Any:
        if found := problem(url, os.environ, place):
            raise error(found)
        return handler(url, *arguments, **options)

    return checked


def is_loopback(host: str) -> bool:
    """Whether every machine means itself by this address."""
    name = host.strip().lower().strip("[]").removesuffix(".")
    if name in _LOOPBACK_NAMES or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return _is_short_loopback(name)
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _is_short_loopback(name: str) -> bool:
    """Whether it is a loopback address as C also reads it: 127.1."""
    try:
        packed = socket.inet_aton(name)
    except (OSError, ValueError):
        return False
    return ipaddress.IPv4Address(packed).is_loopback
