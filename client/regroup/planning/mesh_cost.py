"""What gloo's full mesh of connections costs at each start of a generation."""

from __future__ import annotations

from bisect import bisect_right

from regroup.planning.hardware import GIGA, Cluster
from regroup_trainer.protocol.generation import MEETING_SECONDS

WARNED_RANKS = 512
"""From here on the addresses take the generation's store about a second (docs/design/0025)."""
_ADDRESS_BYTES, _BYTES_OF_PEER = 154, 8
"""What a rank writes to the store: its address, and a number for each peer. Measured with torch
2.15 and up to 32 ranks.
"""
_BYTES_A_SECOND = GIGA
"""Of the store, about."""


def _address_bytes(ranks: int) -> int:
    """What the store sends to all ranks together."""
    return ranks * ranks * (_ADDRESS_BYTES + _BYTES_OF_PEER * ranks)


_MOST_BYTES = MEETING_SECONDS * _BYTES_A_SECOND
MOST_RANKS = bisect_right(range(1 << 20), _MOST_BYTES, key=_address_bytes) - 1
"""More cannot start: their addresses take longer than ranks may take to connect."""


def warning(cluster: Cluster) -> str:
    """What to expect of a start with so many ranks; empty where it does not matter."""
    ranks = cluster.devices
    if ranks < WARNED_RANKS:
        return ""
    too_many = (
        f". Ranks that have come have {MEETING_SECONDS:.0f} s to connect, so that more than "
        f"{MOST_RANKS:,} ranks cannot start"
    )
    return (
        f"gloo connects all {ranks:,} ranks to each other at each start and recovery: "
        f"{ranks - 1:,} sockets a rank, {cluster.gpus_per_node * (ranks - 1):,} a machine (raise "
        f"its limit of open files), and {_address_bytes(ranks) / GIGA:,.1f} GB of addresses "
        "through the store of rank 0, about a second for each GB"
        f"{too_many if ranks > MOST_RANKS else ''}. By formula from up to 32 measured ranks: "
        "docs/design/0025"
    )
