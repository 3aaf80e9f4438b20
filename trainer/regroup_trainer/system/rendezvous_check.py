"""Says at once what is wrong with a program's own rendezvous, where ranks would wait for each other
in vain.

A program that takes LOCAL_RANK for its rank, or sets MASTER_ADDR to localhost, works on one
machine. On several, some ranks never come. It works in images without Regroup too: see
`protocol/torchrun_programs.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from regroup_trainer.system.machine_address import is_here, is_loopback, listens

_LEAVE = "leave MASTER_ADDR and MASTER_PORT as they are set"
_GROUP_ARGUMENTS = ("backend", "init_method", "timeout", "world_size", "rank", "store")
"""Of torch's init_process_group, by position."""


@dataclass(frozen=True)
class RankPlace:
    """What the rendezvous of a program has to report of this rank."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    hosts: int
    """The number of machines, or pods, of the job."""
    address: str = ""
    """Where rank 0 lets the others meet, as it was given to the program; empty: not known."""
    port: int = 0


def watch_rendezvous(
    place: RankPlace,
    error: Callable[[str], Exception],
    meet: Callable[[int], None] = lambda _port: None,
) -> None:
    """From now on a rendezvous of this process that cannot succeed raises `error`. The process has
    imported torch.distributed.rendezvous.

    `meet` is called with the port before all ranks meet at one.
    """
    handlers = vars(sys.modules["torch.distributed.rendezvous"])["_rendezvous_handlers"]
    for scheme in ("env", "tcp", "file"):
        handlers[scheme] = _checked(handlers[scheme], place, error, meet)
    _watch_hosts(vars(sys.modules["torch._C._distributed_c10d"])["TCPStore"], place, error)


def _watch_hosts(tcp_store: Any, place: RankPlace, error: Callable[[str], Exception]) -> None:
    """From now on a store that nobody could find raises `error`, whoever makes it."""
    make = tcp_store.__init__

    def checked(
        store: Any,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        *rest: Any,
        **options: Any,
    ) -> None:
        if is_master and (found := host_problem(host_name, port, place)):
            raise error(found)
        make(store, host_name, port, world_size, is_master, *rest, **options)

    tcp_store.__init__ = checked


def watch_groups(place: RankPlace, error: Callable[[str], Exception]) -> None:
    """From now on a process group that this rank would join with a wrong number, by a store of the
    program's own, raises `error`. The process has imported torch.distributed.distributed_c10d.
    """
    module = vars(sys.modules["torch.distributed.distributed_c10d"])
    initialize = module["init_process_group"]

    @wraps(initialize)
    def checked(*arguments: Any, **options: Any) -> Any:
        given = dict(zip(_GROUP_ARGUMENTS, arguments)) | options  # noqa: B905
        rank, size = given.get("rank", -1), given.get("world_size", -1)
        if given.get("store") is None or size != place.world_size:
            found = ""  # the handlers look, or it is another group
        else:
            found = wrong_rank(rank, size, place)
        if found:
            raise error(found)
        return initialize(*arguments, **options)

    module["init_process_group"] = checked
    vars(sys.modules["torch.distributed"])["init_process_group"] = checked


def refuse_spawn(place: RankPlace, error: Callable[[str], Exception]) -> None:
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
    rank, size = _numbers(parts.query, environment)
    if rank is None or size is None:
        return ""  # c10d refuses it
    is_known = not _is_elsewhere(parts, size, environment, place)
    if is_known and (found := wrong_rank(rank, size, place)):
        return found
    host, _ = _meeting_point(parts, environment)
    if is_known and place.hosts > 1 and _is_of_several(rank, size, place) and is_loopback(host):
        return (
            f"the address to meet at is {host[:100]}, which is another machine on each of the "
            f"{place.hosts} workers: {_LEAVE}"
        )
    return _of_own_machine(host, rank, place)


def wrong_rank(rank: int, size: int, place: RankPlace) -> str:
    """What is wrong with the number that this process takes in a group of all ranks; empty where
    nothing is known to be, or the group is another one.
    """
    if not _is_of_several(rank, size, place):
        return ""
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
    return ""


def _is_of_several(rank: int, size: int, place: RankPlace) -> bool:
    """Whether it can be a group of ranks of several workers: neither of this worker's ranks alone,
    nor of one process.
    """
    return size != 1 and (rank, size) != (place.local_rank, place.local_world_size)


def host_problem(host: str, port: int, place: RankPlace) -> str:
    """What is wrong with a store that this process hosts; empty when nothing is known to be."""
    if host != place.address and is_here(host) is False:
        return (
            f"this process hosts the store where ranks meet, and {host[:100]} is not its machine: "
            f"{_LEAVE}, or host the store on rank 0 alone"
        )
    if place.rank and (host, port) == (place.address, place.port):
        return (
            f"this process hosts the store at {host}:{port}, which is rank 0's to host, and it is "
            f'rank {place.rank}: take is_master=(int(os.environ["RANK"]) == 0)'
        )
    return ""


def _of_own_machine(host: str, rank: int, place: RankPlace) -> str:
    """Ranks on other machines than rank 0's that take their own machine for the one to meet at."""
    if not host or not place.address or host == place.address or rank == 0:
        return ""
    if is_here(host) and is_here(place.address) is False:
        return (
            f"the address to meet at is {host[:100]}, which is this rank's own machine, and rank 0 "
            f"is at {place.address}: {_LEAVE}"
        )
    return ""


def _meeting_point(parts: SplitResult, environment: Mapping[str, str]) -> tuple[str, str]:
    """Host and port by which c10d finds rank 0; empty for a file."""
    if parts.scheme == "tcp":
        host, _, port = parts.netloc.rpartition(":")
        return parts.hostname or host, port
    if parts.scheme != "env":
        return "", ""
    return environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")


def _numbers(query: str, environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Rank and world size that c10d will take."""
    given = {name: values[-1] for name, values in parse_qs(query).items()}
    return (
        _whole(given.get("rank", environment.get("RANK", ""))),
        _whole(given.get("world_size", environment.get("WORLD_SIZE", ""))),
    )


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
    return parts.scheme != "env" and size != place.world_size and parts.netloc != here


def is_address_in_use(error: Exception) -> bool:
    """Whether the error is that of a listener whose address is in use."""
    return "address already in use" in str(error).lower()


OF_TAKEN_ADDRESS = (
    "an address is in use, and the ranks of one machine cannot listen at the same port: take port "
    '0 (any that is free), or one for each rank, such as 29600 + int(os.environ["RANK"]), or '
    "listen in one rank alone"
)
"""What to change in a program whose own listener fails."""


def is_taken(error: Exception, port: int) -> bool:
    """Whether an address in use is that of this port, and another process listens there."""
    return f"port: {port}," in str(error) and not listens(port)


def _checked(
    handler: Callable[..., Any],
    place: RankPlace,
    error: Callable[[str], Exception],
    meet: Callable[[int], None],
) -> Callable[..., Any]:
    def checked(url: str, *arguments: Any, **options: Any) -> Any:
        if found := problem(url, os.environ, place):
            raise error(found)
        if (port := port_of_all(url, os.environ, place)) is not None:
            meet(port)
        return handler(url, *arguments, **options)

    return checked


def port_of_all(url: str, environment: Mapping[str, str], place: RankPlace) -> int | None:
    """The port at which all ranks meet; None where a rendezvous is another one."""
    parts = urlsplit(url)
    rank, size = _numbers(parts.query, environment)
    if place.world_size == 1 or (rank, size) != (place.rank, place.world_size):
        return None
    return _whole(_meeting_point(parts, environment)[1])
