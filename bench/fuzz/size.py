"""How much a fuzz draws and measures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS

CLIENTS = 4
"""Of the hostile tenant. Each has one request in flight all the time."""


@dataclass(frozen=True)
class FuzzSize:
    """How much is drawn and measured."""

    seed: int
    jobs: int
    """That the API server takes."""
    templates: int
    samples: int
    """Before each wave, and beside it at least."""
    clients: int = CLIENTS
    """Of the hostile tenant."""
    seconds: float = math.inf
    """No wave begins later."""
    workers: int = DEFAULT_MAX_WORKERS
    """Of the jobs that have most."""
