"""The ports that a machine or pod listens on, by the kernel's tables."""

from __future__ import annotations

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
"""The second one has the listeners on all addresses of both kinds, such as c10d's store. It is not
there where the kernel has no IPv6.
"""
_LISTENS = "0A"


def listening_ports(tables: str) -> set[int]:
    """The ports in the text of TABLES, save those of loopback alone."""
    rows = [line.split() for line in tables.splitlines()]
    local = [row[1].split(":") for row in rows if row[3:4] == [_LISTENS]]
    return {int(port, 16) for address, port in local if not _is_loopback(address)}


def _is_loopback(address: str) -> bool:
    """Whether an address of a table is one of 127.0.0.0/8, also in IPv6, or ::1: each four bytes
    are written the other way round.
    """
    is_ipv4 = len(address) == 8 or address.startswith(16 * "0" + "FFFF0000")
    return address.endswith("7F") if is_ipv4 else address == 24 * "0" + "01000000"
