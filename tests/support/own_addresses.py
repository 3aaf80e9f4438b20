"""Loopback addresses that another process of tests does not take at the same time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator


def own_addresses(block: int) -> Iterator[str]:
    """Addresses of this process, without end; each `block` (0 to 255) has others."""
    for number in itertools.cycle(range(2, 250)):
        yield f"127.{1 + os.getpid() % 98}.{block}.{number}"
