"""What ranks compute to agree, in milliseconds, by the number of ranks.

    make bench NAME=state_agreement [ARGS=--quick]

When a generation begins, each rank decides from the inventories of all ranks which state goes on:
`recovery.inventory.agree`. Half of the ranks are new here, so that the other half has to send.

- `replicated_ms`: each rank holds the whole state. `sharded_ms`: each holds a shard of half of it.
- `broken_ms`: as the first, and all holders but one still have to complete the last step.
- `unpickle_ms`, `gathered_mb`: reading the inventories that c10d gathers on each rank.
- `commit_us`: reading the commit vector of a step; `vector_us`: making it.

The time is that of the processor, so that other processes matter less. The way over the network is
not measured.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable

import torch

from bench.harness import Plan, Values, command
from regroup_trainer.protocol.generation import Decision, GenerationNumber
from regroup_trainer.recovery.inventory import StateInventory, agree
from regroup_trainer.step.commit import Commit, Contribution, read

SIZES = ("8", "256", "1024", "8192")
"""Ranks."""
UNITS = {
    "replicated_ms": "ms", "sharded_ms": "ms", "broken_ms": "ms", "unpickle_ms": "ms",
    "gathered_mb": "MB", "vector_us": "us", "commit_us": "us",
}  # fmt: skip
REPEATED = 100
"""Times that what takes microseconds is repeated."""
_GENERATION = GenerationNumber(1, 1)
_COMMIT = Commit(4096, 1.0, 1.0, 7, Decision.CONTINUE)
_OWN = Contribution(4096, 4096.0, 1.0, 7, Decision.CONTINUE)


def plan(quick: bool) -> Plan:
    """Three runs of each size; a quick one measures two small ones once."""
    sizes = SIZES[:2] if quick else SIZES
    return Plan("state_agreement", sizes, ("regroup",), UNITS, 1 if quick else 3)


def measure(case: str, _subject: str) -> Values:
    """One run with so many ranks."""
    ranks = int(case)
    holders = ranks // 2
    replicated, completing = inventories(holders), inventories(holders, completing=True)
    sharded = inventories(holders, shards=holders)
    gathered = [pickle.dumps(one) for one in replicated]
    vector = (holders * 2 * _OWN.vector(torch.device("cpu"))).tolist()
    return {
        "replicated_ms": cpu_seconds(lambda: agree(replicated)) * 1e3,
        "sharded_ms": cpu_seconds(lambda: agree(sharded)) * 1e3,
        "broken_ms": cpu_seconds(lambda: agree(completing)) * 1e3,
        "unpickle_ms": cpu_seconds(lambda: [pickle.loads(one) for one in gathered]) * 1e3,
        "gathered_mb": max(map(len, gathered)) * ranks / 1e6,  # c10d fills each up to the longest
        "vector_us": repeated_us(lambda: _OWN.vector(torch.device("cpu"))),
        "commit_us": repeated_us(lambda: read(vector, holders * 2)),
    }


def inventories(holders: int, shards: int = 1, completing: bool = False) -> list[StateInventory]:
    """As many ranks that hold a state as ranks that hold nothing, shard by shard."""
    held = [
        StateInventory(rank % shards, _GENERATION, 6 - late, late, _COMMIT)
        for rank in range(holders)
        for late in [completing and rank > 0]
    ]
    return [*held, *(StateInventory(rank % shards) for rank in range(holders))]


def cpu_seconds(action: Callable[[], object]) -> float:
    """Time of the processor."""
    began = time.process_time()
    action()
    return time.process_time() - began


def repeated_us(action: Callable[[], object]) -> float:
    """Microseconds of the processor for one of many calls."""
    return cpu_seconds(lambda: [action() for _ in range(REPEATED)]) / REPEATED * 1e6


main = command(plan, measure)

if __name__ == "__main__":
    main()
