"""What gloo's full mesh of connections costs at the start of a generation, by the number of ranks.

    make bench NAME=full_mesh [ARGS=--quick]

Real ranks, one process each, make a process group over loopback. The subject `gloo` is gloo as it
comes, `regroup` has the settings of `parallel.process_group`, and `lazy` has
`TORCH_GLOO_LAZY_INIT=1`: a connection is made when it is used first.

- `setup_seconds`: the slowest rank's `init_process_group`, and `first_seconds` the first all-reduce
  and all-gather after it. All ranks share the cores of one machine.
- `connections`: TCP sockets of a rank after the set-up; `used`: after these collectives.
- `requests`, `fetched_kb`: what all ranks ask of the generation's store, and what it sends.
- `store_ms`: the time of the processor that the store takes for that.
- `released_seconds`: how soon a rank stops waiting for a peer that froze before they exchanged
  anything, once its connections are cut (`cut_off`); no value where that takes over 10 s.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store as C10dStore
from torch._C._distributed_c10d import TCPStore

from bench.generation_store import HOST, Store, forked
from bench.harness import Plan, Values, command
from regroup_trainer.parallel.process_group import GLOO, cut_off

SETTINGS = {"gloo": {}, "regroup": GLOO, "lazy": {"TORCH_GLOO_LAZY_INIT": "1"}}
"""Subject -> variables of the environment."""
UNITS = {
    "setup_seconds": "s", "first_seconds": "s", "connections": "sockets", "used": "sockets",
    "requests": "requests", "fetched_kb": "kB", "store_ms": "ms",
    "released_seconds": "s",
}  # fmt: skip
INTERFACE = {"GLOO_SOCKET_IFNAME": "lo"}
TIMEOUT = timedelta(minutes=5)
CUT_SECONDS, RELEASE_SECONDS = 1.0, 10.0


@dataclass
class Found:
    """What one rank saw."""

    setup_seconds: float
    first_seconds: float
    connections: int
    used: int
    requests: int
    fetched: int
    """Bytes."""


def plan(quick: bool) -> Plan:
    """Four numbers of ranks; a quick run has two ranks."""
    sizes = ("2",) if quick else ("4", "8", "16", "32")
    return Plan("full_mesh", sizes, tuple(SETTINGS), UNITS, 1 if quick else 3)


def measure(case: str, subject: str) -> Values:
    """A process group of so many ranks."""
    with clean_process() as pool:
        found = pool.submit(met, [SETTINGS[subject]] * int(case)).result()
        return {**found, "released_seconds": pool.submit(released, SETTINGS[subject]).result()}


def clean_process() -> ProcessPoolExecutor:
    """A process without threads, which may fork."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def met(settings: Sequence[dict[str, str]]) -> Values:
    """What ranks with these settings saw: the slowest, or all together."""
    store = Store()
    began = store.cpu_seconds()
    started = [
        forked(_meet, rank, len(settings), store.port, own) for rank, own in enumerate(settings)
    ]
    found = [Found(*pipe.recv()) for pipe, _ in started]
    spent = store.cpu_seconds() - began
    end(store.process, *(process for _, process in started))
    return {
        "setup_seconds": max(one.setup_seconds for one in found),
        "first_seconds": max(one.first_seconds for one in found),
        "connections": max(one.connections for one in found),
        "used": max(one.used for one in found),
        "requests": sum(one.requests for one in found),
        "fetched_kb": sum(one.fetched for one in found) / 1e3,
        "store_ms": spent * 1e3,
    }


def released(settings: dict[str, str]) -> float | None:
    """Seconds from the cut of its connections until a rank stops waiting for its frozen peer."""
    store = Store()
    started = [forked(_wait_for_peer, rank, store.port, settings) for rank in range(2)]
    (pipe, waiting), (other, frozen) = started
    met = [pipe.recv(), other.recv()]
    os.kill(frozen.pid or 0, signal.SIGSTOP)
    pipe.send(met)
    seconds: float | None = pipe.recv() if pipe.poll(CUT_SECONDS + RELEASE_SECONDS) else None
    end(store.process, waiting, frozen)
    return seconds


def end(*processes: BaseProcess) -> None:
    """Kill processes, frozen ones too."""
    for process in processes:
        process.kill()
        process.join()


def _wait_for_peer(pipe: Connection, rank: int, port: int, settings: dict[str, str]) -> None:
    os.environ |= INTERFACE | settings
    store = TCPStore(HOST, port, is_master=False, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=TIMEOUT)
    pipe.send(rank)
    pipe.recv()
    threading.Timer(CUT_SECONDS, cut_off, [[HOST]]).start()
    began = time.monotonic()
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(torch.ones(1))
    pipe.send(max(0.0, time.monotonic() - began - CUT_SECONDS))


def _meet(pipe: Connection, rank: int, ranks: int, port: int, settings: dict[str, str]) -> None:
    os.environ |= INTERFACE | settings
    torch.set_num_threads(1)
    store = CountingStore(TCPStore(HOST, port, is_master=False, timeout=TIMEOUT))
    sockets = count_sockets()
    began = time.monotonic()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    set_up, connections = time.monotonic(), count_sockets()
    dist.all_reduce(torch.ones(7, dtype=torch.float64))
    gathered: list[int | None] = [None] * ranks
    dist.all_gather_object(gathered, rank)
    ended, used = time.monotonic(), count_sockets()
    found = Found(
        set_up - began,
        ended - set_up,
        connections - sockets,
        used - sockets,
        store.requests,
        store.fetched,
    )
    pipe.send(astuple(found))
    pipe.recv()  # until the process is ended: a peer may still be in a collective


def count_sockets() -> int:
    """Sockets of this process."""
    return sum(link.is_socket() for link in Path("/proc/self/fd").iterdir())


class CountingStore(C10dStore):
    """A store that counts what its rank asks for."""

    def __init__(self, store: C10dStore) -> None:
        super().__init__()
        self._store = store
        self.requests = 0
        self.fetched = 0
        """Bytes of the values that came."""

    def set(self, key: str, value: str) -> None:
        """As the store."""
        self.requests += 1
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """As the store."""
        self.requests += 1
        value = self._store.get(key)
        self.fetched += len(value)
        return value

    def add(self, key: str, amount: int) -> int:
        """As the store."""
        self.requests += 1
        return self._store.add(key, amount)

    def wait(self, keys: list[str], timeout: timedelta = TIMEOUT) -> None:
        """As the store."""
        self.requests += 1
        self._store.wait(keys, timeout)

    def check(self, keys: list[str]) -> bool:
        """As the store."""
        self.requests += 1
        return self._store.check(keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """As the store."""
        self.requests += 1
        values = self._store.multi_get(keys)
        self.fetched += sum(map(len, values))
        return values

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        """As the store."""
        self.requests += 1
        self._store.multi_set(keys, values)  # type: ignore[attr-defined]

    def has_extended_api(self) -> bool:
        """As the store."""
        return bool(self._store.has_extended_api())  # type: ignore[attr-defined]


main = command(plan, measure)

if __name__ == "__main__":
    main()
