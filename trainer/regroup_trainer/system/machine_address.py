"""What an address means to this machine: whether every machine means itself by it, whether it is
one of its own, who listens there, and which ports are free.

It works in images without Regroup too: see `protocol/torchrun_programs.py`.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import random
import socket

_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
_LISTENS = "0A"
"""State of a listening socket in /proc/net/tcp."""
_PORTS = range(10_000, 30_000)
"""Below the ports of connections, which start at 32,768 on Linux, and below node ports."""
_PORT_TRIES = 100
# Not the shared generator: a program that seeds it would draw the same ports in each process.
_random = random.SystemRandom()


def is_here(host: str) -> bool | None:
    """Whether a listener of this machine can have this address; None where its name cannot be
    looked up now.
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return None if error.errno == socket.EAI_AGAIN else False
    except (OSError, ValueError):
        return None
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


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


def listens(port: int) -> bool:
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


def free_ports(count: int) -> list[int]:
    """Different ports on which no process listens now, whatever its address.

    They are none that the kernel gives to connections: such a port could be in use before the
    caller listens. Raises OSError when too many are in use.
    """
    free: list[int] = []
    for port in _random.sample(_PORTS, _PORT_TRIES):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            free.append(port)
        if len(free) == count:
            return free
    raise OSError(errno.EADDRINUSE, f"too few free ports among {_PORTS.start}-{_PORTS.stop - 1}")


def free_port() -> int:
    """A port on which no process listens now. Raises as `free_ports` does."""
    return free_ports(1)[0]
