"""c10d's process group of a generation: joining it, leaving it, and breaking its connections.

The generation's record has the address of its store. A prefix keeps the keys of generations apart,
so that an aborted start leaves nothing that a later one could read.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.distributed_c10d import init_process_group  # that of a script is checked

from regroup_trainer.errors import GenerationOverError
from regroup_trainer.protocol.generation import MEETING_SECONDS, Assignment
from regroup_trainer.system.log_lines import rank_log

_JOIN_TIMEOUT = timedelta(seconds=MEETING_SECONDS)
"""How long the store may not answer, and how long ranks that have all come may take to connect."""
_COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""The last resort when nobody notices that a peer hangs; the coordinator notices lost peers within
seconds. It must be longer than the longest wait for a peer's checkpoint writes, and than the
longest start of a script.
"""
_LONGEST_START = timedelta(days=1)
"""Of the built-in trainer: a peer may wait for the volume of its data. It reports that, and the
coordinator notices who does not.
"""
_ALL_CAME = "all came"
_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""The watchdog aborts collectives that hang and ends no process: the agent ends processes, and a
rank may go on.
"""
GLOO = {"GLOO_ENABLE_STORE_V2_API": "1"}
"""A rank gets the addresses of all others by one request of the store, instead of two for each. The
keys are the same, so that it meets ranks of releases without this.
"""
_set_timeout: Callable[[timedelta], None] = (
    getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
)
"""Older releases of torch have the private name only."""
_SIOCGIFADDR = 0x8915
_held: list[tuple[float, str, socket.socket]] = []
"""Connections of process groups that this process has left: since when (monotonic), the peer's
address, and the connection.
"""
_POLL_SECONDS = 0.2
_CONNECTION_PHRASES = (
    "connection closed by peer",
    "connection reset",
    "broken pipe",
    "connect timeout",
    "timed out",
)


@dataclass(frozen=True)
class GenerationGroup:
    """A rank's place in the process group of its generation."""

    rank: int
    size: int
    local_rank: int
    device: torch.device

    @property
    def is_rank0(self) -> bool:
        """Whether this rank speaks for the job: it prints, and writes what is written once."""
        return self.rank == 0


def join(assignment: Assignment) -> GenerationGroup:
    """Join the generation's process group: nccl for CUDA tensors where there are GPUs, gloo for
    tensors on the CPU.

    Raises what `is_peer_loss` recognises when the others do not come, or do not connect once all
    have come.
    """
    host, port = assignment.record.store.rsplit(":", 1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_towards(host))
    for name, value in (_NCCL | GLOO).items():
        os.environ.setdefault(name, value)
    store = PrefixStore(
        str(assignment.record.number),
        TCPStore(host, int(port), is_master=False, timeout=_JOIN_TIMEOUT),
    )
    longest = _COLLECTIVE_TIMEOUT if assignment.record.desired.script else _LONGEST_START
    _await_others(store, assignment.record.world_size, longest)
    return meet(assignment, store)


def _await_others(store: Store, world_size: int, longest: timedelta) -> None:
    """Return once all ranks of the generation have come here.

    A peer may take minutes to start. But when all are here and do not connect, something is wrong.
    """
    if store.add("came", 1) == world_size:
        store.set(_ALL_CAME, "")
    store.wait([_ALL_CAME], longest)


def meet(assignment: Assignment, store: Store) -> GenerationGroup:
    """As `join`, with a store that no other generation has used."""
    _release(addresses_of(assignment))
    device = _device(assignment.local_rank)
    # Groups find each other by names that torch counts. It counts those that came to nothing too,
    # and then this rank would look for a fresh one under a name that nobody else uses.
    dist.distributed_c10d._world.group_count = 0
    init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=assignment.rank,
        world_size=assignment.record.world_size,
        timeout=_JOIN_TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
    _set_timeout(_COLLECTIVE_TIMEOUT)
    return GenerationGroup(
        assignment.rank, assignment.record.world_size, assignment.local_rank, device
    )


def leave() -> None:
    """Wait for the others, then close the process group."""
    dist.barrier()
    dist.destroy_process_group()


def abandon() -> list[Any]:
    """Close the process group of a broken generation without waiting for anybody. Returns its
    groups, which are for `end_later`.
    """
    if not dist.is_initialized():
        return []
    groups = list(dist.distributed_c10d._world.pg_map)
    with contextlib.suppress(RuntimeError):  # the other ranks do not answer
        dist.destroy_process_group()
    return groups


def end_later(groups: Iterable[Any]) -> None:
    """Have a thread of its own let go of process groups, each after all others have: a wrapper of
    the model, a mesh. A group that is given twice counts once.

    Who lets go last waits for the collectives of the group. One that hangs never ends.
    """
    different = list({id(group): group for group in groups}.values())
    threading.Thread(target=_end_each, args=(different,), name="end groups", daemon=True).start()


def _end_each(groups: list[Any]) -> None:
    (alone,) = _references([object()])  # releases of Python count differently
    while groups:
        groups[:] = [
            group for group, count in zip(groups, _references(groups), strict=True) if count > alone
        ]
        time.sleep(_POLL_SECONDS)


def _references(things: list[Any]) -> list[int]:
    """How often each is referred to: by the list, by this function, and by others."""
    return [sys.getrefcount(thing) for thing in things]


def addresses_of(assignment: Assignment) -> set[str]:
    """The IP addresses of all that this rank is connected to in its generation."""
    record = assignment.record
    return {place.address for place in record.members if place.address} | {
        record.store.rsplit(":", 1)[0]
    }


def cut_off(addresses: Collection[str]) -> None:
    """Break this process's connections to those IP addresses, so that a collective which waits for
    a peer raises.

    Call it in another thread than the one that waits. c10d's own abort leaves gloo's callers
    blocked when a peer is frozen or its network is gone (torch 2.15).
    """
    for connection in hold(addresses):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RD)  # only the reading end, see `hold`
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        dist.distributed_c10d._abort_process_group()


def hold(addresses: Collection[str]) -> list[socket.socket]:
    """Keep this process's connections to those IP addresses open until it meets their ranks in
    another process group, whoever closes them.

    When a connection breaks, gloo drops the sends that the connection has not taken. Whoever waits
    for one of them waits for ever (torch 2.15: `Pair::signalException` passes over them). So peers
    must find a connection that is idle, and not one that is closed. A peer behind a network that
    is down may still wait when the others train on without it.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            connection = stack.enter_context(_stream_socket(int(name)))
            peer = _plain(connection.getpeername()[0])
            if peer in addresses:
                found.append((time.monotonic(), peer, connection))
                stack.pop_all()
    _held.extend(found)
    return [connection for _, _, connection in found]


def _release(met: Collection[str]) -> None:
    """Close held connections to peers that are met again, and those that are older than any
    collective in which a peer may wait.
    """
    oldest = time.monotonic() - _COLLECTIVE_TIMEOUT.total_seconds()
    held, _held[:] = _held[:], []
    for since, peer, connection in held:
        if peer in met or since < oldest:
            connection.close()
        else:
            _held.append((since, peer, connection))


def _stream_socket(descriptor: int) -> socket.socket:
    """A second handle of a TCP socket of this process. Raises OSError for anything else."""
    copy = os.dup(descriptor)
    try:
        found = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
        found.close()
        raise OSError(f"descriptor {descriptor} is no TCP socket")
    return found


def _plain(address: str) -> str:
    """The address; IPv4 addresses in IPv6 notation are converted."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def report_loss(rank: int, error: BaseException) -> None:
    """Print why a rank lost its process group. Only the first line: c10d's own frames follow it."""
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    rank_log.warning("rank %d lost its process group: %s", rank, reason)


def is_peer_loss(error: BaseException) -> bool:
    """Whether an error means that another rank or the store went away, and not that this rank did
    wrong.
    """
    if isinstance(error, GenerationOverError | dist.DistNetworkError | dist.DistStoreError):
        return True
    text = str(error).lower()
    if isinstance(error, dist.DistBackendError):
        return "out of memory" not in text
    return isinstance(error, RuntimeError) and any(phrase in text for phrase in _CONNECTION_PHRASES)


def interface_towards(host: str) -> str:
    """The network interface by which `host` is reached; gloo has to listen there.

    By default gloo resolves its own host name, which in a pod may give nothing or take seconds.
    Raises OSError when there is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # a datagram socket: this chooses the route and sends nothing
        own_address = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            if _address_of(probe, name) == own_address:
                return name
    raise OSError(f"no interface has address {own_address}, from which {host} is reached")


def _address_of(probe: socket.socket, interface: str) -> str | None:
    request = struct.pack("256s", interface.encode())
    try:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    except OSError:  # an interface without an address
        return None
    return socket.inet_ntoa(answer[20:24])


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
