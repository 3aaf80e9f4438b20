"""What a heartbeat, and a new connection, cost a coordinator: microseconds of the processor, kernel
and network included.

    make bench NAME=heartbeat_cost [ARGS=--quick]

The server is in this process. Another one plays the agents, members or not, each over a connection
of its own: as frames, or as requests of the kind that a proxy without upgrades leaves. In each
round every agent sends a heartbeat; the next round begins when those that want an answer have it.
Of `frames` the last one wants it, of `answered` each. Agents want one a second.

`connection_us` is what comes before: the handshake of a connection for frames. Of `hellos` it is
the other one of an agent, a WebSocket's, with its hello until the coordinator's welcome; no
heartbeats follow it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from bench.harness import Goal, Plan, Values, command
from regroup_trainer.system.heartbeat_line import HEADERS, Beat, Kind
from tests.support.coordinator_server import BEARER, Setup, serving
from tests.support.generations import make_hello

CASES, QUICK_CASES = ("64", "1024"), ("8",)
"""Agents."""
HELLOS = "hellos"
SUBJECTS = ("frames", "answered", "requests", HELLOS)
BEATS, QUICK_BEATS = 16_384, 400
"""Of all agents together."""
UNITS = {"heartbeat_us": "us", "connection_us": "us"}
MOST_US = 20.0
"""For a frame."""


def plan(quick: bool) -> Plan:
    """Three runs; a quick one has a few heartbeats."""
    cases = QUICK_CASES if quick else CASES
    return Plan("heartbeat_cost", cases, SUBJECTS, UNITS, 1 if quick else 3, goals=goals)


def goals(_case: str, subject: str) -> Mapping[str, Goal]:
    """What is asked of frames, with an answer or without."""
    return {"heartbeat_us": Goal(MOST_US)} if subject in ("frames", "answered") else {}


def measure(case: str, subject: str) -> Values:
    """One run."""
    agents = int(case)
    rounds = (QUICK_BEATS if case in QUICK_CASES else BEATS) // agents
    return asyncio.run(_measure(agents, rounds, subject))


async def _measure(agents: int, rounds: int, subject: str) -> Values:
    more = agents + 1  # so that no generation begins
    patient = {"replicas": more, "max_replicas": more, "min_replicas": more}
    with tempfile.TemporaryDirectory(prefix="regroup-bench-") as folder:
        async with serving(Path(folder), timeout_milliseconds=600_000, **patient) as setup:
            for index in range(0 if subject == HELLOS else agents):
                hello = make_hello(index)
                setup.core.on_message(hello, hello.member, time.monotonic())
            return await _cpu_of(setup, agents, rounds, subject)


async def _cpu_of(setup: Setup, agents: int, rounds: int, subject: str) -> Values:
    port = setup.url.rsplit(":", 1)[1]
    playing = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.heartbeat_cost", "--play"),
        *(port, str(agents), str(rounds), subject),
        stdout=asyncio.subprocess.PIPE,
    )
    assert playing.stdout is not None
    begun = time.process_time()
    await playing.stdout.readline()
    connected = time.process_time()
    await playing.stdout.readline()
    done = time.process_time()
    await playing.wait()
    connection, beat = (connected - begun) / agents, (done - connected) / (agents * rounds)
    return {
        "heartbeat_us": None if subject == HELLOS else beat * 1e6,
        "connection_us": connection * 1e6,
    }


# --- the agents -----------------------------------------------------------------------------------


def play(port: int, agents: int, rounds: int, subject: str) -> None:
    """Send the heartbeats, from another process."""
    connected = [socket.create_connection(("127.0.0.1", port)) for _ in range(agents)]
    if subject != "requests":
        for index, one in enumerate(connected):
            one.sendall(_text(f"GET /v1/heartbeats/{index}?member=uid-{index}", HEADERS))
            one.recv(4096)
    print("connected", flush=True)
    for _ in range(rounds):
        for index, one in enumerate(connected):
            one.sendall(_beat(subject, f"uid-{index}", index == agents - 1))
        for one in connected[-1:] if subject == "frames" else connected:
            if not one.recv(4096):
                raise ConnectionError
    print("done", flush=True)


async def play_hellos(port: int, agents: int) -> None:
    """Connect as agents do, one after another, and wait for the welcome of each."""
    many = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=BEARER, connector=many) as session:
        sockets = []
        for index in range(agents):
            sockets.append(await session.ws_connect(f"http://127.0.0.1:{port}/v1/agent"))
            await sockets[-1].send_str(make_hello(index).shortened().model_dump_json())
        for one in sockets:
            await one.receive_str()
        print("connected\ndone", flush=True)


def _beat(subject: str, member: str, is_last: bool) -> bytes:
    if subject == "requests":
        return _text(f"POST /v1/heartbeat/{member}?delay=0.001", {"Content-Length": "0"})
    wants_answer = subject == "answered" or is_last
    return Beat(Kind.ALIVE, time.monotonic_ns(), wants_answer).encode()


def _text(request: str, headers: dict[str, str]) -> bytes:
    shown = {"Host": "h", **BEARER, **headers}
    lines = [f"{request} HTTP/1.1", *(f"{name}: {value}" for name, value in shown.items())]
    return "\r\n".join([*lines, "", ""]).encode()


main = command(plan, measure)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        port, agents, rounds = map(int, sys.argv[2:5])
        if sys.argv[5] == HELLOS:
            asyncio.run(play_hellos(port, agents))
        else:
            play(port, agents, rounds, sys.argv[5])
    else:
        main()
