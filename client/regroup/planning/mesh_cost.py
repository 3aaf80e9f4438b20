"""What gloo's full mesh of connections costs at each start of a generation."""

from __future__ import annotations

from regroup.planning.hardware import GIGA, Cluster

WARNED_RANKS = 512
"""From here on the addresses take the generation's store about a second (docs/design/0025)."""
_ADDRESS_BYTES, _BYTES_OF_PEER = 154, 8
"""What a rank writes to the store: its address, and a number for each peer. Measured with torch
2.15 and up to 32 ranks.
"""


def warning(cluster: Cluster) -> str:
    """What to expect of a start with so many ranks; empty where it does not matter."""
    ranks = cluster.devices
    if ranks < WARNED_RANKS:
        return ""
    addresses = ranks * ranks * (_ADDRESS_BYTES + _BYTES_OF_PEER * ranks)
    return (
        f"gloo connects all {ranks:,} ranks to each other at each start and recovery: "
        f"{ranks - 1:,} sockets a rank, {cluster.gpus_per_node * (ranks - 1):,} a machine (raise "
        f"its limit of open files), and {addresses / GIGA:,.1f} GB of addresses through the store "
        "of rank 0, about a second for each GB. By formula from up to 32 measured ranks: "
        "docs/design/0025"
    )
