"""What c10d's store of a generation costs in its process, in microseconds a request.

    make bench NAME=generation_store [ARGS=--quick]

Every rank connects to the store, adds itself to a counter, and waits for the key that the last one
sets (`parallel.process_group.join`). Then gloo sets and gets the addresses of all ranks. The
subject `processes` has a process for each client. `connections` has all clients in one process, so
that 8,192 of them fit a machine; they send one after the other. `addresses_ms` is for one rank that
gets the addresses of all by one request, up to 1,024 ranks.

The time is that of the processor of the store's process, so that other processes matter less.
`came_ms` is the whole cost until all ranks know that all have come. One thread serves all requests,
so that a second of its time is a second of each start.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from torch._C._distributed_c10d import TCPStore

from bench.harness import Plan, Values, command

HOST = "127.0.0.1"
PROCESSES, CONNECTIONS = "processes", "connections"
LARGEST_OF_PROCESSES = 256
REQUESTS = ("connect", "add", "wait", "set", "get")
UNITS = {f"{request}_us": "us" for request in REQUESTS} | {"came_ms": "ms", "addresses_ms": "ms"}
MOST_ADDRESSES = 1024
_SPAWN, _FORK = get_context("spawn"), get_context("fork")


def plan(quick: bool) -> Plan:
    """Four numbers of clients; a quick run has a few clients."""
    sizes = ("4",) if quick else ("64", "256", "1024", "8192")
    return Plan("generation_store", sizes, (PROCESSES, CONNECTIONS), UNITS, 1 if quick else 3)


def measure(case: str, subject: str) -> Values:
    """So many clients; no values where they are too many processes."""
    clients = int(case)
    if subject == PROCESSES and clients > LARGEST_OF_PROCESSES:
        return {}
    # A process without threads forks the clients: importing torch in each takes too long.
    with ProcessPoolExecutor(1, mp_context=_SPAWN) as pool:
        processes = clients if subject == PROCESSES else 1
        return pool.submit(served, clients, processes).result()


def served(clients: int, processes: int) -> Values:
    """The store's time for each kind of request."""
    store, each = Store(), clients // processes
    players = [StorePlayers(range(n * each, (n + 1) * each), clients) for n in range(processes)]
    spent: dict[str, float] = {}
    try:
        for request in (*REQUESTS, "addresses"):
            began = store.cpu_seconds()
            for player in players:
                player.pipe.send((request, store.port))
            for player in players:
                player.pipe.recv()
            if request == "add":
                store.all_came()
            spent[request] = store.cpu_seconds() - began
    finally:
        for ended in (*(player.process for player in players), store.process):
            ended.terminate()
            ended.join()
    came = sum(spent[request] for request in ("connect", "add", "wait"))
    return {f"{name}_us": spent[name] / clients * 1e6 for name in REQUESTS} | {
        "came_ms": came * 1e3,
        "addresses_ms": spent["addresses"] * 1e3 if clients <= MOST_ADDRESSES else None,
    }


class Store:
    """The store in a process of its own, at `port`."""

    def __init__(self) -> None:
        self._pipe, self.process = forked(_serve)
        self.port: int = self._pipe.recv()

    def cpu_seconds(self) -> float:
        """The time of the processor that it has taken."""
        self._pipe.send("cpu")
        seconds: float = self._pipe.recv()
        return seconds

    def all_came(self) -> None:
        """Set the key that clients wait for."""
        TCPStore(HOST, self.port, is_master=False).set("all came", "")


class StorePlayers:
    """Some of all clients of the store, in a process of their own."""

    def __init__(self, numbers: range, clients: int) -> None:
        self.pipe, self.process = forked(_play, numbers, clients)


def forked(target: Callable[..., None], *arguments: object) -> tuple[Connection, BaseProcess]:
    """A process that runs `target` with an end of a pipe, and the other end."""
    here, there = _FORK.Pipe()
    process = _FORK.Process(target=target, args=(there, *arguments), daemon=True)
    process.start()
    there.close()
    return here, process


def _serve(pipe: Connection) -> None:
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    while pipe.recv():
        pipe.send(time.process_time())


def _play(pipe: Connection, numbers: range, clients: int) -> None:
    stores: list[TCPStore] = []
    while True:
        request, port = pipe.recv()
        if request == "connect":
            stores = [TCPStore(HOST, port, is_master=False) for _ in numbers]
        for number, store in zip(numbers, stores, strict=True):
            send(store, request, number, clients)
        pipe.send("done")


def send(store: TCPStore, request: str, number: int, clients: int) -> None:
    """One request of a client; its connection is made already."""
    match request:
        case "add":
            store.add("came", 1)
        case "wait":
            store.wait(["all came"])
        case "set":
            store.set(f"address {number}", "a" * address_bytes(clients))
        case "get":
            store.get(f"address {number}")
        case "addresses" if number == 0 and clients <= MOST_ADDRESSES:
            store.multi_get([f"address {number}" for number in range(clients)])


def address_bytes(ranks: int) -> int:
    """What gloo writes for a rank, as `full_mesh` finds it; here for 1,024 ranks at most."""
    return 154 + 8 * min(ranks, MOST_ADDRESSES)


main = command(plan, measure)

if __name__ == "__main__":
    main()
